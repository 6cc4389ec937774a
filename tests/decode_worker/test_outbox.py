"""How long answers are kept: until `keep_s` after their end was last sent, whatever happens to streams."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from decode_worker.outbox import Answer, Outbox
from kvrelay.v1 import decode_pb2

KEEP_S = 10.0


class HandSetLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock a test sets."""

    now_s = 0.0

    def time(self) -> float:
        return self.now_s


async def _run(loop: HandSetLoop, actions: list[str]) -> None:
    outbox = Outbox(KEEP_S)
    running: list[Answer] = []
    # What must be kept, by id: when the end was last sent, None before.
    kept: dict[str, float | None] = {}
    to_send: set[str] = set()
    for number, action in enumerate(actions):
        if action == "open":
            answer = Answer(f"r{number}", 1, 0)
            running.append(answer)
            kept[answer.request_id] = None
            outbox.open(answer)
        elif action == "token" and running:
            running[0].token_ids.append(number)
            outbox.changed(running[0])
            to_send.add(running[0].request_id)
        elif action == "end" and running:
            answer = running.pop(0)
            answer.end = decode_pb2.EndEvent(request_id=answer.request_id, attempt=1)
            outbox.changed(answer)
            to_send.add(answer.request_id)
        elif action == "wait":
            loop.now_s += KEEP_S * 0.6
        elif action in ("take", "replay"):
            if action == "take":
                message = outbox.take(step=number)
                assert message.heartbeat == (not to_send)
                for end in message.ends:
                    kept[end.request_id] = loop.now_s
                assert {end.request_id for end in message.ends} == to_send - {a.request_id for a in running}
                to_send.clear()
            else:
                outbox.replay()
            old = {name for name, at in kept.items() if at is not None and at < loop.now_s - KEEP_S}
            for name in old - to_send:
                del kept[name]
            if action == "replay":
                to_send.update(kept)
        assert len(outbox) == len(kept)
        assert all(outbox.has_end(name, 1) for name, at in kept.items() if at is not None)


# Single actions, and some in a row that much happens after.
ACTIONS = st.sampled_from(
    (
        *(("open",), ("token",), ("end",), ("wait",), ("take",), ("replay",)),
        *(("open", "end", "take"), ("replay", "take"), ("wait", "take")),
    )
)


@settings(max_examples=300, deadline=None)
@given(st.lists(ACTIONS, min_size=5, max_size=40))
def test_answers_are_kept_as_long_as_their_arrival_is_not_sure(rows: list[tuple[str, ...]]) -> None:
    actions = [action for row in rows for action in row]
    loop = HandSetLoop()
    try:
        loop.run_until_complete(_run(loop, actions))
    finally:
        loop.close()
