from __future__ import annotations

import asyncio

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvrelay.v1 import common_pb2, decode_pb2
from router.failover import AttemptFailedError, FailureCause, classify_work_error, give_up, next_step
from router.generation import ErrorKind, GenerationError
from tests.router.harness import PROMPT, Collected, Harness, ScriptedIndex, eventually
from tests.support.fake_workers import (
    DecodeScript,
    FakeDecodeWorker,
    FakePrefillWorker,
    PrefillScript,
    answer_tokens,
)

COUNT = 12
RIGHT = answer_tokens(PROMPT, COUNT)


def work_error(kind: int, *, alive: bool = False) -> decode_pb2.WorkError:
    return decode_pb2.WorkError(kind=kind, message="as told", ticket_alive=alive)


KV_LOST = work_error(decode_pb2.WorkError.KIND_KV_LOST)
KV_LOST_TICKET_ALIVE = work_error(decode_pb2.WorkError.KIND_KV_LOST, alive=True)
OVERLOADED = work_error(decode_pb2.WorkError.KIND_OVERLOADED)


def on_attempt(number: int, fault: DecodeScript):
    """A decode worker's script: `fault` at one attempt, nothing at the others."""
    return lambda submit: fault if submit.request.attempt == number else DecodeScript()


def two_and_two(decode_fault: DecodeScript = DecodeScript(), **options: object) -> Harness:  # noqa: B008
    """Two workers of each role; all decode workers have the fault at the first attempt."""
    return Harness(
        [
            FakePrefillWorker(f"prefill-{n}", script=lambda _: PrefillScript(cached_tokens=8))
            for n in range(2)
        ],
        [FakeDecodeWorker(f"decode-{n}", script=on_attempt(1, decode_fault)) for n in range(2)],
        **options,
    )


def prefills_started(router: Harness) -> int:
    return sum(len(prefill.started) for prefill in router.prefills)


def assert_right(seen: Collected, *, attempts: int) -> None:
    assert seen.tokens == RIGHT
    assert seen.indices == list(range(COUNT))
    assert seen.end is not None
    assert seen.end.completion_tokens == COUNT
    assert seen.end.timeline.attempts == attempts


async def test_decode_worker_dies_mid_stream() -> None:
    async with two_and_two(DecodeScript(after=5, die=True)) as router:
        seen = await router.run()
        assert_right(seen, attempts=2)
        resumed = [
            submit for decode in router.decodes for submit in decode.submitted if submit.request.attempt == 2
        ]
        assert list(resumed[0].request.resumed_token_ids) == RIGHT[:5]
        assert tuple(resumed[0].request.prompt_token_ids) == PROMPT
        assert prefills_started(router) == 2
        assert router.metric("failovers_total", cause="decode_lost") == 1
        await router.assert_quiet()


async def test_decode_worker_dies_before_the_first_token_and_its_ticket_lives_on() -> None:
    async with two_and_two(DecodeScript(after=0, die=True)) as router:
        seen = await router.run()
        assert_right(seen, attempts=2)
        assert prefills_started(router) == 1, "nothing is recomputed"
        assert seen.end is not None
        assert seen.end.cached_tokens == 8
        assert seen.end.timeline.placement_reason.startswith("re-attached")
        await router.assert_quiet()


async def test_decode_worker_hangs_and_wakes() -> None:
    async with two_and_two(DecodeScript(after=3, hang=True), heartbeat_timeout_s=1.0) as router:
        assert_right(await router.run(), attempts=2)
        hung = next(decode for decode in router.decodes if decode.submitted[0].request.attempt == 1)
        assert not next(w for w in router.core.admin.status().workers if w.info == hung.info).healthy
        hung.wake()
        await eventually(lambda: all(link.available for link in router.core.table.links), "back by itself")
        await router.assert_quiet()


async def test_session_breaks_and_the_worker_is_told_to_forget() -> None:
    async with two_and_two(DecodeScript(after=4, drop_stream=True)) as router:
        assert_right(await router.run(), attempts=2)
        await eventually(lambda: any(decode.cancelled == [("request-1", 1)] for decode in router.decodes))
        await router.assert_quiet()


async def test_prefill_worker_dies_and_the_decode_worker_is_kept() -> None:
    async with two_and_two() as router:
        for prefill in router.prefills:
            prefill.script = lambda work: PrefillScript(hold=work.attempt == 1)
        task = asyncio.create_task(router.run())
        attached = lambda p: any(ticket.state == "ATTACHED" for ticket in p.tickets.values())  # noqa: E731
        await eventually(lambda: any(attached(prefill) for prefill in router.prefills))
        lost = next(prefill for prefill in router.prefills if attached(prefill))
        first_decode = next(decode for decode in router.decodes if decode.submitted)
        await lost.stop()
        assert_right(await task, attempts=2)
        assert [submit.request.attempt for submit in first_decode.submitted] == [1, 2]
        assert router.metric("failovers_total", cause="kv_lost") == 1
        await router.assert_quiet()


async def test_prefill_worker_dies_at_start() -> None:
    async with two_and_two() as router:
        for prefill in router.prefills:
            prefill.script = lambda work: PrefillScript(die=work.attempt == 1)
        assert_right(await router.run(), attempts=2)
        await router.assert_quiet()


async def test_prefill_worker_hangs_at_start() -> None:
    async with two_and_two(heartbeat_timeout_s=1.0) as router:
        for prefill in router.prefills:
            prefill.script = lambda work: PrefillScript(start_hangs=work.attempt == 1)
        assert_right(await router.run(), attempts=2)
        assert router.metric("failovers_total", cause="prefill_lost") == 1


async def test_a_full_prefill_queue_sends_the_request_to_the_other() -> None:
    async with two_and_two() as router:
        full = grpc.StatusCode.RESOURCE_EXHAUSTED
        router.prefills[0].script = lambda _: PrefillScript(refuse=full)
        for _ in range(6):
            assert (await router.run()).tokens == RIGHT
        assert len(router.prefills[1].started) == 6


async def test_when_all_are_full_the_client_hears_so() -> None:
    async with two_and_two(DecodeScript(error=OVERLOADED), max_attempts=2) as router:
        for decode in router.decodes:
            decode.script = lambda _: DecodeScript(error=OVERLOADED)
        with pytest.raises(GenerationError, match="failed after 2 attempts") as caught:
            await router.run()
        assert caught.value.kind is ErrorKind.OVERLOADED
        assert caught.value.retry_after_s
        await eventually(
            lambda: not any(prefill.live_tickets for prefill in router.prefills), "tickets released"
        )


async def test_kv_lost_with_a_living_ticket_goes_to_the_other_decode_worker() -> None:
    async with two_and_two(DecodeScript(error=KV_LOST_TICKET_ALIVE)) as router:
        assert_right(await router.run(), attempts=2)
        assert prefills_started(router) == 1
        assert [len(decode.submitted) for decode in router.decodes] == [1, 1]
        await router.assert_quiet()


async def test_kv_lost_for_good_is_prefilled_anew_for_the_same_decode_worker() -> None:
    async with two_and_two(DecodeScript(error=KV_LOST)) as router:
        assert_right(await router.run(), attempts=2)
        assert prefills_started(router) == 2
        assert sorted(len(decode.submitted) for decode in router.decodes) == [0, 2]
        await eventually(
            lambda: not any(prefill.live_tickets for prefill in router.prefills), "tickets released"
        )


async def test_identities_that_differ_are_an_error_with_both_fingerprints() -> None:
    error = decode_pb2.WorkError(kind=decode_pb2.WorkError.KIND_IDENTITY_MISMATCH, message="abc is not def")
    async with two_and_two(DecodeScript(error=error)) as router:
        with pytest.raises(GenerationError, match="abc is not def") as caught:
            await router.run()
        assert caught.value.kind is ErrorKind.INTERNAL
        assert prefills_started(router) == 1
        await router.assert_quiet()


@pytest.mark.parametrize("where", ["prefill", "decode"])
async def test_what_no_worker_can_run_is_invalid(where: str) -> None:
    error = work_error(decode_pb2.WorkError.KIND_INVALID)
    fault = DecodeScript(error=error) if where == "decode" else DecodeScript()
    async with two_and_two(fault) as router:
        if where == "prefill":
            for prefill in router.prefills:
                prefill.script = lambda _: PrefillScript(refuse=grpc.StatusCode.INVALID_ARGUMENT)
        with pytest.raises(GenerationError, match="told") as caught:
            await router.run()
        assert caught.value.kind is ErrorKind.INVALID
        assert prefills_started(router) == 1
        await router.assert_quiet()


async def test_the_only_decode_worker_comes_back_as_another_process() -> None:
    decode = FakeDecodeWorker("decode-0", script=on_attempt(1, DecodeScript(after=2, die=True)))
    async with Harness([FakePrefillWorker("prefill-0")], [decode]) as router:
        task = asyncio.create_task(router.run())
        await eventually(lambda: not decode.alive)
        assert not task.done()
        await decode.restart()
        await router.push_table()
        assert_right(await task, attempts=2)
        await router.assert_quiet()


async def test_a_ticket_of_a_process_that_is_gone_is_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    prefill = FakePrefillWorker("prefill-0")
    decode = FakeDecodeWorker("decode-0", script=on_attempt(1, DecodeScript(die=True)))
    async with Harness([prefill], [decode]) as router:
        task = asyncio.create_task(router.run())
        await eventually(lambda: not decode.alive)
        await prefill.restart()
        await router.push_table()
        await decode.restart()
        await router.push_table()
        assert (await task).tokens == RIGHT
        await router.assert_quiet()
    assert not [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


class GarblingDecodeWorker(FakeDecodeWorker):
    """Its first session begins with a message that nobody can read."""

    garbled = False

    def _register(self, server: grpc.aio.Server) -> None:
        handler = grpc.stream_stream_rpc_method_handler(
            self._garbled_session,
            decode_pb2.DecodeCommand.FromString,
            lambda message: message if isinstance(message, bytes) else message.SerializeToString(),
        )
        service = decode_pb2.DESCRIPTOR.services_by_name["Decode"].full_name
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {"Session": handler}),)
        )

    async def _garbled_session(self, commands, context):
        if not self.garbled:
            self.garbled = True
            yield b"\xff\xff"
            await asyncio.Event().wait()
        async for events in self.Session(commands, context):
            yield events


async def test_a_message_that_cannot_be_read_costs_the_stream_and_not_the_worker() -> None:
    async with Harness([FakePrefillWorker("prefill-0")], [GarblingDecodeWorker("decode-0")]) as router:
        await eventually(lambda: router.decodes[0].routers, "the stream was opened again")
        assert_right(await router.run(), attempts=1)


async def test_no_worker_comes_back() -> None:
    decode = FakeDecodeWorker("decode-0", script=on_attempt(1, DecodeScript(after=2, die=True)))
    async with Harness([FakePrefillWorker("prefill-0")], [decode], worker_wait_s=0.3) as router:
        seen = Collected()
        with pytest.raises(GenerationError, match="no decode worker lives") as caught:
            await router.run(into=seen)
        assert caught.value.kind is ErrorKind.UNAVAILABLE
        assert seen.tokens == RIGHT[:2]


async def test_all_tokens_came_but_not_their_end() -> None:
    async with two_and_two(DecodeScript(after=COUNT, die=True)) as router:
        assert_right(await router.run(), attempts=1)
        assert prefills_started(router) == 1


@pytest.mark.parametrize(("min_tokens", "count"), [(2, 3), (3, COUNT)])
async def test_a_stop_token_among_the_first_min_tokens_is_no_end(min_tokens: int, count: int) -> None:
    async with two_and_two(DecodeScript(after=3, die=True)) as router:
        seen = await router.run(router.request(stop_token_ids=(RIGHT[2],), min_tokens=min_tokens))
        assert seen.tokens == RIGHT[:count]


async def test_cached_tokens_leave_out_what_an_earlier_attempt_computed() -> None:
    # The second prefill finds in the cache what the first, which died with the stream, had computed.
    index = ScriptedIndex({"prefill-0": 1})
    prefill = FakePrefillWorker("prefill-0", script=lambda _: PrefillScript(cached_tokens=16))
    decode = FakeDecodeWorker("decode-0", script=on_attempt(1, DecodeScript(error=KV_LOST)))
    async with Harness([prefill], [decode], index) as router:
        seen = await router.run()
        assert_right(seen, attempts=2)
        assert seen.end is not None
        assert seen.end.cached_tokens == 4


faults = st.one_of(
    st.builds(DecodeScript, after=st.integers(0, COUNT), die=st.just(True)),
    st.builds(DecodeScript, after=st.integers(0, COUNT), drop_stream=st.just(True)),
    st.builds(DecodeScript, after=st.integers(1, COUNT - 1), omit=st.integers(1, 3)),
    st.builds(DecodeScript, repeat=st.integers(1, 4), step_tokens=st.integers(1, 4)),
    st.sampled_from([KV_LOST, KV_LOST_TICKET_ALIVE, OVERLOADED]).map(lambda error: DecodeScript(error=error)),
    st.just(PrefillScript(die=True)),
    st.just(PrefillScript(revoke=True)),
    st.sampled_from([grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE]).map(
        lambda status: PrefillScript(refuse=status)
    ),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(faults, max_size=3))
def test_whatever_happens_the_client_gets_each_token_once(plan: list[DecodeScript | PrefillScript]) -> None:
    async def scenario() -> None:
        def fault_of(attempt: int) -> DecodeScript | PrefillScript | None:
            return plan[attempt - 1] if attempt <= len(plan) else None

        async with two_and_two(max_attempts=len(plan) + 3) as router:
            for prefill in router.prefills:
                prefill.script = lambda work: (
                    fault if isinstance(fault := fault_of(work.attempt), PrefillScript) else PrefillScript()
                )
            for decode in router.decodes:
                decode.script = lambda submit: (
                    fault
                    if isinstance(fault := fault_of(submit.request.attempt), DecodeScript)
                    else DecodeScript()
                )
            supervisor = asyncio.create_task(router.supervise())
            try:
                seen = await router.run()
                assert seen.tokens == RIGHT
                assert seen.indices == list(range(COUNT))
                assert seen.end is not None
                assert seen.end.completion_tokens == COUNT
                assert 1 <= seen.end.timeline.attempts <= len(plan) + 3
                await router.assert_quiet()
            finally:
                supervisor.cancel()
                await asyncio.gather(supervisor, return_exceptions=True)

    asyncio.run(scenario())


@pytest.mark.parametrize("cause", list(FailureCause))
@pytest.mark.parametrize("alive", [True, False])
def test_a_ticket_is_given_on_only_while_it_lives(cause: FailureCause, alive: bool) -> None:
    step = next_step(AttemptFailedError(cause, "why", ticket_alive=alive))
    assert not step.reattach or alive
    assert not (step.reattach and step.keep_decode)
    assert step.prefill_cooldown_s or step.decode_cooldown_s


def test_unknown_errors_of_a_worker_are_not_tried_again() -> None:
    failure = classify_work_error(decode_pb2.WorkError(message="boom"), "decode-0")
    assert isinstance(failure, GenerationError)
    assert failure.kind is ErrorKind.INTERNAL
    assert "decode-0: boom" in failure.message


def test_giving_up_names_the_last_failure() -> None:
    error = give_up(AttemptFailedError(FailureCause.DECODE_LOST, "decode-0: gone", ticket_alive=False), 4)
    assert error.kind is ErrorKind.UNAVAILABLE
    assert error.message == "failed after 4 attempts: decode-0: gone"


async def test_a_worker_that_shuts_down_hands_its_requests_on() -> None:
    cancelled = DecodeScript(finish=common_pb2.FINISH_REASON_CANCELLED)
    decodes = [FakeDecodeWorker(f"decode-{n}") for n in range(2)]
    for decode in decodes:
        decode.script = lambda submit: cancelled if submit.request.attempt == 1 else DecodeScript()
    async with Harness([FakePrefillWorker("prefill-0")], decodes) as router:
        seen = await router.run(router.request(stop_token_ids=()))
        assert seen.tokens == RIGHT
