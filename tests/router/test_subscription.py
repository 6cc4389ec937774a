from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from kvrelay.v1 import common_pb2, decode_pb2
from router.subscription import SessionLost, Subscription


def _tokens(index: int, *ids: int) -> decode_pb2.TokenEvent:
    event = decode_pb2.TokenEvent(request_id="r", attempt=1, index=index, token_ids=ids)
    event.logprobs.extend(common_pb2.TokenLogprobs(logprob=-float(token)) for token in ids)
    return event


async def test_tokens_that_wait_are_joined_and_the_end_stays_apart() -> None:
    subscription = Subscription("r", 1)
    first = _tokens(3, 7)
    first.prefilled.cached_tokens = 5
    subscription.put(first)
    subscription.put(_tokens(4, 8, 9))
    subscription.put(decode_pb2.EndEvent(request_id="r", attempt=1))
    joined = await subscription.next()
    assert isinstance(joined, decode_pb2.TokenEvent)
    assert (joined.index, list(joined.token_ids)) == (3, [7, 8, 9])
    assert [item.logprob for item in joined.logprobs] == [-7.0, -8.0, -9.0]
    assert joined.prefilled.cached_tokens == 5
    assert isinstance(await subscription.next(), decode_pb2.EndEvent)


async def test_a_gap_and_a_repetition_are_not_hidden() -> None:
    subscription = Subscription("r", 1)
    for index in (0, 2, 0):
        subscription.put(_tokens(index, 5))
    subscription.put(SessionLost("gone"))
    taken = [await subscription.next() for _ in range(4)]
    assert [event.index for event in taken if isinstance(event, decode_pb2.TokenEvent)] == [0, 2, 0]
    assert taken[3] == SessionLost("gone")


async def test_one_that_waits_is_woken_and_a_cancelled_wait_loses_nothing() -> None:
    subscription = Subscription("r", 1)
    waiting = asyncio.ensure_future(subscription.next())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    subscription.put(_tokens(0, 1))
    again = asyncio.ensure_future(subscription.next())
    assert (await again) == _tokens(0, 1)
    later = asyncio.ensure_future(subscription.next())
    await asyncio.sleep(0)
    subscription.put(_tokens(1, 2))
    # Put before the waiter ran: it gets both.
    subscription.put(_tokens(2, 3))
    assert (await later) == _tokens(1, 2, 3)


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=30))
def test_however_it_is_read_the_tokens_are_the_same(pieces: list[tuple[int, bool]]) -> None:
    async def read() -> list[int]:
        subscription, got, index = Subscription("r", 1), [], 0

        async def take() -> None:
            event = await subscription.next()
            assert isinstance(event, decode_pb2.TokenEvent)
            assert event.index == len(got)
            got.extend(event.token_ids)

        for count, reads in pieces:
            subscription.put(_tokens(index, *range(index, index + count)))
            index += count
            if reads:
                await take()
        while len(got) < index:
            await take()
        return got

    assert asyncio.run(read()) == list(range(sum(count for count, _ in pieces)))
