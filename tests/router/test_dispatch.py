from __future__ import annotations

import asyncio
import dataclasses
import time
from typing import Any

import pytest

from kvrelay.v1 import common_pb2, worker_pb2
from router.generation import (
    ErrorKind,
    GenerationError,
    GrammarSpec,
    ResolvedSampling,
    Speculation,
    TokenDelta,
)
from tests.router.harness import BLOCK_SIZE, PROMPT, Collected, Harness, ScriptedIndex, eventually
from tests.support.fake_workers import (
    DecodeScript,
    FakeDecodeWorker,
    FakePrefillWorker,
    PrefillScript,
    answer_tokens,
)


async def test_a_request_is_prefilled_remotely_and_decoded() -> None:
    prefill = FakePrefillWorker("prefill-0", script=lambda _: PrefillScript(cached_tokens=8))
    async with Harness([prefill], [FakeDecodeWorker("decode-0")]) as router:
        seen = await router.run()
        assert seen.tokens == answer_tokens(PROMPT, 12)
        assert seen.indices == list(range(12))
        assert seen.end is not None
        assert seen.end.finish_reason == "length"
        assert seen.end.completion_tokens == 12
        assert seen.end.cached_tokens == 8
        timeline = seen.end.timeline
        assert (timeline.prefill_worker, timeline.decode_worker) == ("prefill-0", "decode-0")
        assert timeline.attempts == 1
        assert not timeline.local_prefill
        assert timeline.placement_reason.startswith("remote: 20 of 20 tokens")
        assert timeline.transport == "fake"
        assert 0 < timeline.ttft_s < 60
        await router.assert_quiet()


async def test_parameters_reach_both_workers() -> None:
    asked: dict[str, Any] = {
        "temperature": 0.5, "top_p": 0.25, "top_k": 7, "seed": 2**64 - 1, "choice": 3, "max_tokens": 2,
        "min_tokens": 1, "stop_token_ids": (5, 6), "ignore_eos": True, "min_p": 0.125, "typical_p": 0.75,
        "presence_penalty": -1.5, "frequency_penalty": 0.5, "repetition_penalty": 1.25,
        "logit_bias": ((3, -2.0), (8, 1.5)), "bad_words": ((1,), (2, 3)), "allowed_token_ids": (4, 9),
        "logprobs": 0, "prompt_logprobs": 4, "grammar": GrammarSpec("regex", "a+"), "own_seed": True,
    }  # fmt: skip
    assert set(asked) == {field.name for field in dataclasses.fields(ResolvedSampling)}
    async with Harness([FakePrefillWorker("prefill-0")], [FakeDecodeWorker("decode-0")]) as router:
        deadline = time.time() + 100
        request = router.request(deadline=deadline, trace=True, cache_salt="tenant", priority=-4, **asked)
        request = dataclasses.replace(request, speculation=Speculation("ngram", 3))
        await router.run(request)
        started, submitted = router.prefills[0].started[0], router.decodes[0].submitted[0].request
        assert started == submitted
        assert submitted.attempt == 1
        assert tuple(submitted.prompt_token_ids) == PROMPT
        assert submitted.deadline_unix_ms == round(deadline * 1000)
        assert (submitted.trace, submitted.cache_salt, submitted.priority) == (True, "tenant", -4)
        assert submitted.speculation == worker_pb2.Speculation(method="ngram", num_speculative_tokens=3)
        assert submitted.sampling == common_pb2.SamplingParams(
            temperature=0.5, top_p=0.25, top_k=7, seed=2**64 - 1, choice=3, max_tokens=2, min_tokens=1,
            stop_token_ids=[5, 6], ignore_eos=True, min_p=0.125, typical_p=0.75, presence_penalty=-1.5,
            frequency_penalty=0.5, repetition_penalty=1.25, logit_bias={3: -2.0, 8: 1.5},
            bad_words=[common_pb2.TokenSequence(ids=[1]), common_pb2.TokenSequence(ids=[2, 3])],
            allowed_token_ids=[4, 9], logprobs=0, prompt_logprobs=4, grammar=common_pb2.Grammar(regex="a+"),
            own_seed=True,
        )  # fmt: skip


async def test_what_nobody_asked_for_is_not_sent() -> None:
    async with Harness([FakePrefillWorker("prefill-0")], [FakeDecodeWorker("decode-0")]) as router:
        await router.run()
        assert not router.decodes[0].submitted[0].request.HasField("speculation")
        sent = router.decodes[0].submitted[0].request.sampling
        assert not any(sent.HasField(name) for name in ("logprobs", "prompt_logprobs", "grammar"))
        assert sent == common_pb2.SamplingParams(
            top_p=1.0, max_tokens=12, typical_p=1.0, repetition_penalty=1.0
        )


async def test_draft_methods_are_those_that_all_decode_workers_serve() -> None:
    prefill, decodes = FakePrefillWorker("prefill-0"), [FakeDecodeWorker(f"decode-{i}") for i in range(2)]
    decodes[0].info.draft_methods.extend(["eagle3", "ngram", "none"])
    decodes[1].info.draft_methods.extend(["none", "ngram"])
    async with Harness([prefill], decodes) as router:
        assert router.core.dispatcher.draft_methods == ("ngram", "none")
    async with Harness([prefill]) as router:
        assert router.core.dispatcher.draft_methods == ()


async def test_what_the_decode_worker_holds_is_prefilled_there() -> None:
    index = ScriptedIndex({"decode-0": 4, "prefill-0": 1})
    prefill, decode = FakePrefillWorker("prefill-0"), FakeDecodeWorker("decode-0")
    decode.script = lambda _: DecodeScript(cached_tokens=16)
    async with Harness([prefill], [decode], index, local_prefill_tokens=4) as router:
        seen = await router.run()
        assert seen.end is not None
        assert seen.end.timeline.local_prefill
        assert seen.end.timeline.placement_reason == "local: 4 of 20 tokens to compute, limit 4"
        assert seen.end.cached_tokens == 16
        assert not prefill.started
        assert len(index.chains[-1]) == len(PROMPT) // BLOCK_SIZE
        await eventually(lambda: not index.bookings, "bookings taken back")
        assert index.booked == [("decode-0", 4)]


async def test_remote_prefill_can_be_forced() -> None:
    index = ScriptedIndex({"decode-0": 5})
    async with Harness(
        [FakePrefillWorker("prefill-0")],
        [FakeDecodeWorker("decode-0")],
        index,
        local_prefill_tokens=1000,
        force_remote_prefill=True,
    ) as router:
        seen = await router.run()
        assert seen.end is not None
        assert not seen.end.timeline.local_prefill
        assert sorted(index.booked) == [("decode-0", 0), ("prefill-0", 20)]


async def test_forced_remote_prefill_without_a_prefill_worker_is_unavailable() -> None:
    async with Harness(
        [], [FakeDecodeWorker("decode-0")], force_remote_prefill=True, heartbeat_timeout_s=0.5
    ) as router:
        assert not router.core.dispatcher.ready
        with pytest.raises(GenerationError, match="no prefill worker lives") as caught:
            await router.run()
        assert caught.value.kind is ErrorKind.UNAVAILABLE
        assert caught.value.retry_after_s


async def test_a_dead_index_changes_nothing_but_the_placement() -> None:
    index = ScriptedIndex({"prefill-1": 5})
    prefills = [FakePrefillWorker("prefill-0"), FakePrefillWorker("prefill-1")]
    async with Harness(prefills, [FakeDecodeWorker("decode-0")], index) as router:
        assert (await router.run()).end
        assert prefills[1].started
        assert router.core.admin.status().index_available
        index.down = True
        assert (await router.run()).tokens == answer_tokens(PROMPT, 12)
        assert not router.core.admin.status().index_available
        index.down = False
        await eventually(lambda: router.core.admin.status().index_available, "index seen again")


async def test_hot_prefix_goes_where_its_blocks_are_until_that_worker_is_full() -> None:
    index = ScriptedIndex({"prefill-1": 5})
    prefills = [FakePrefillWorker("prefill-0"), FakePrefillWorker("prefill-1")]
    async with Harness(prefills, [FakeDecodeWorker("decode-0")], index) as router:
        for _ in range(5):
            await router.run()
        assert not prefills[0].started
        prefills[1].stats.queued_prefill_tokens = 5000
        await eventually(
            lambda: router.core.table.links[2].report.stats.queued_prefill_tokens, "load reported"
        )
        await router.run()
        assert len(prefills[0].started) == 1


async def test_idle_workers_share_the_requests() -> None:
    prefills = [FakePrefillWorker(f"prefill-{number}") for number in range(2)]
    decodes = [FakeDecodeWorker(f"decode-{number}") for number in range(2)]
    async with Harness(prefills, decodes) as router:
        for _ in range(24):
            await router.run()
        assert all(len(prefill.started) >= 4 for prefill in prefills)
        assert all(len(decode.submitted) >= 4 for decode in decodes)


async def test_tokens_that_come_twice_are_given_once() -> None:
    decode = FakeDecodeWorker("decode-0", script=lambda _: DecodeScript(repeat=3, step_tokens=2))
    async with Harness([FakePrefillWorker("prefill-0")], [decode]) as router:
        seen = await router.run()
        assert seen.tokens == answer_tokens(PROMPT, 12)
        assert seen.indices == list(range(12))


async def test_many_requests_share_one_stream() -> None:
    decode = FakeDecodeWorker("decode-0", script=lambda _: DecodeScript(step_tokens=3))
    async with Harness([FakePrefillWorker("prefill-0")], [decode]) as router:
        prompts = [tuple(range(number, number + 9)) for number in range(40)]
        seen = await asyncio.gather(*(router.run(router.request(prompt)) for prompt in prompts))
        assert [one.tokens for one in seen] == [answer_tokens(prompt, 12) for prompt in prompts]
        await router.assert_quiet()


async def test_cancelling_frees_everything() -> None:
    decode = FakeDecodeWorker("decode-0", script=lambda _: DecodeScript(step_s=0.05))
    async with Harness([FakePrefillWorker("prefill-0")], [decode]) as router:
        seen = Collected()
        task = asyncio.create_task(router.run(router.request(max_tokens=5000), into=seen))
        await eventually(lambda: len(seen.tokens) >= 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await router.assert_quiet()
        assert decode.cancelled == [("request-1", 1)]


async def test_cancelling_while_the_decode_worker_waits_for_kv() -> None:
    prefill = FakePrefillWorker("prefill-0", script=lambda _: PrefillScript(hold=True))
    async with Harness([prefill], [FakeDecodeWorker("decode-0")]) as router:
        task = asyncio.create_task(router.run())
        await eventually(lambda: any(t.state == "ATTACHED" for t in prefill.tickets.values()))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: not router.decodes[0].running)
        assert router.decodes[0].cancelled == [("request-1", 1)]


async def test_cancelling_while_prefill_is_being_started_releases_the_ticket() -> None:
    prefill = FakePrefillWorker("prefill-0")
    async with Harness([prefill], [FakeDecodeWorker("decode-0")]) as router:
        prefill.hang()
        task = asyncio.create_task(router.run())
        # Every call on the way has left: the worker answers when it wakes.
        await eventually(lambda: router.metric("placements_total", prefill="remote") == 1)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        prefill.wake()
        await eventually(lambda: prefill.started, "the call arrived")
        await router.assert_quiet()
        assert not router.decodes[0].submitted


async def test_the_deadline_ends_it_everywhere() -> None:
    decode = FakeDecodeWorker("decode-0", script=lambda _: DecodeScript(step_s=0.05))
    async with Harness([FakePrefillWorker("prefill-0")], [decode]) as router:
        seen = Collected()
        request = router.request(max_tokens=5000, deadline=time.time() + 1.0)
        with pytest.raises(GenerationError) as caught:
            await router.run(request, into=seen)
        assert caught.value.kind is ErrorKind.DEADLINE
        await router.assert_quiet()
        assert seen.tokens == answer_tokens(PROMPT, len(seen.tokens))


async def test_a_caller_that_has_enough_gets_an_end() -> None:
    decode = FakeDecodeWorker("decode-0", script=lambda _: DecodeScript(step_s=0.02))
    async with Harness([FakePrefillWorker("prefill-0")], [decode]) as router:
        async with router.core.dispatcher.admit() as admission:
            generation = router.core.dispatcher.generate(router.request(max_tokens=5000), admission)
            count = 0
            async for event in generation:
                assert isinstance(event, TokenDelta)
                count += len(event.token_ids)
                if count >= 3:
                    break
            end = await generation.finish()
            assert (end.finish_reason, end.completion_tokens) == ("stop", count)
            with pytest.raises(StopAsyncIteration):
                await anext(generation)
            await generation.aclose()
        await router.assert_quiet()
        assert router.metric("requests_total", outcome="stop") == 1


async def test_status_counts_what_was_done() -> None:
    prefill = FakePrefillWorker("prefill-0", script=lambda _: PrefillScript(cached_tokens=8))
    async with Harness([prefill], [FakeDecodeWorker("decode-0")]) as router:
        for _ in range(3):
            await router.run()
        status = router.core.admin.status()
        assert status.requests_total == 3
        assert status.prompt_tokens_total == 60
        assert status.cached_tokens_total == 24
        assert status.completion_tokens_total == 36
        assert status.tokens_per_second == pytest.approx(3.6)
        assert [(worker.info.worker_id, worker.healthy) for worker in status.workers] == [
            ("decode-0", True),
            ("prefill-0", True),
        ]
