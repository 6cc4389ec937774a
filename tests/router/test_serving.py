"""The shared request path, without a door."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvrelay.v1.common_pb2 import Timeline
from router.admission import AdmissionQueue
from router.answer_text import AnswerText, TextRules
from router.choice_events import ChoiceDelta, ChoiceEnd, usage_of
from router.generation import ErrorKind, GenerationError, GrammarSpec, ResolvedSampling
from router.model_reading import AskedOfAnswers
from router.prepare import ClientRequest, PreparedRequest
from router.prompts import TextPrompt
from router.sampling_options import SamplingOptions
from router.serving import Serving
from router.structured.asked import AskedAnswer
from router.structured.wanted import Draft, Wanted, draft
from router.text.tokenizer import INLINE_CHARACTERS, Tokenizer
from tests.router.doors import HELLO, served_model, until
from tests.support.scripted_dispatcher import Script, ScriptedDispatcher, says
from tests.support.tiny_tokenizer import IM_END, VOCAB_SIZE, byte_tokenizer


def serving_of(folder: Path, script: Any) -> tuple[Serving, ScriptedDispatcher]:
    dispatcher = ScriptedDispatcher(script)
    return Serving(served_model(folder, 2 * INLINE_CHARACTERS), dispatcher), dispatcher


async def prepared(serving: Serving, *prompts: str, **sampling: Any) -> PreparedRequest:
    return await serving.prepare(
        ClientRequest(
            model="",
            prompts=tuple(map(TextPrompt, prompts or ("hi",))),
            sampling=SamplingOptions(**sampling),
            request_id="r",
            arrived_at=time.monotonic(),
        )
    )


async def test_preparing_ends_at_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def held(wanted: Wanted) -> Draft:
        released.wait()
        return draft(wanted)

    monkeypatch.setattr("router.structured.compiler.draft", held)
    serving, _ = serving_of(tmp_path, HELLO)
    request = ClientRequest(
        model="",
        prompts=(TextPrompt("hi"),),
        sampling=SamplingOptions(),
        request_id="r",
        arrived_at=time.monotonic(),
        deadline=time.time() + 0.05,
        answers=AskedOfAnswers(AskedAnswer("regex", "a", "p")),
    )
    try:
        with pytest.raises(GenerationError) as caught:
            await serving.prepare(request)
    finally:
        released.set()
    assert caught.value.kind is ErrorKind.DEADLINE
    assert serving.active == 0
    again = await serving.prepare(replace(request, deadline=None))
    assert again.generations[0].sampling.grammar == GrammarSpec("regex", "a")


async def test_who_waits_comes_in_by_priority(tmp_path: Path) -> None:
    serving, dispatcher = serving_of(tmp_path, HELLO)
    dispatcher.queue = AdmissionQueue(max_running=1, max_queued=9)
    request = await prepared(serving)

    async def run(priority: int) -> None:
        generation = replace(request.generations[0], priority=priority)
        async with aclosing(serving.run(replace(request, generations=(generation,)))) as events:
            async for _ in events:
                pass

    async with dispatcher.admit():
        tasks = [asyncio.create_task(run(priority)) for priority in (5, -1, 2)]
        await until(lambda: dispatcher.queue.queued == 3)
    await asyncio.gather(*tasks)
    assert [generation.request.priority for generation in dispatcher.generations] == [-1, 2, 5]


@pytest.mark.parametrize("n", [1, 3])
async def test_closing_early_ends_every_choice(tmp_path: Path, n: int) -> None:
    serving, dispatcher = serving_of(tmp_path, Script(says("abc", end=None), hang=True))
    async with aclosing(serving.run(await prepared(serving, n=n))) as events:
        assert isinstance(await anext(events), ChoiceDelta)
        assert serving.active == 1
    assert dispatcher.states == ["closed"] * n
    assert serving.active == 0
    assert dispatcher.queue.running == 0


@pytest.mark.parametrize("n", [1, 3])
async def test_cancelling_the_task_ends_every_choice(tmp_path: Path, n: int) -> None:
    serving, dispatcher = serving_of(tmp_path, Script(hang=True))
    request = await prepared(serving, n=n)

    async def consume() -> None:
        async with aclosing(serving.run(request)) as events:
            async for _ in events:
                pass

    task = asyncio.create_task(consume())
    await until(lambda: dispatcher.states == ["running"] * n)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert dispatcher.states == ["closed"] * n
    assert dispatcher.queue.running == 0


async def test_a_consumer_that_waits_holds_choices_back(tmp_path: Path) -> None:
    """Events of many choices wait in a bounded queue, not in memory without end."""
    serving, dispatcher = serving_of(tmp_path, Script(says("a" * 400, end=None)))
    async with aclosing(serving.run(await prepared(serving, n=2, max_tokens=400))) as events:
        await anext(events)
        for _ in range(50):
            await asyncio.sleep(0)
        assert sum(generation.yielded for generation in dispatcher.generations) < 100
        rest = [event async for event in events]
    assert sum(len(event.token_ids) for event in rest if isinstance(event, ChoiceDelta)) == 799


async def test_idle_and_draining(tmp_path: Path) -> None:
    serving, _ = serving_of(tmp_path, HELLO)
    await serving.wait_idle()
    request = await prepared(serving)
    idle = asyncio.create_task(serving.wait_idle())
    async with aclosing(serving.run(request)) as events:
        await anext(events)
        busy = asyncio.create_task(serving.wait_idle())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not busy.done()
        serving.draining = True
        assert not serving.ready
        # What runs goes on.
        assert isinstance([event async for event in events][-1], ChoiceEnd)
    await asyncio.gather(idle, busy)
    with pytest.raises(GenerationError) as caught:
        await prepared(serving)
    assert caught.value.kind is ErrorKind.UNAVAILABLE


async def test_a_request_between_its_preparation_and_its_run_keeps_the_drain_waiting(tmp_path: Path) -> None:
    serving, dispatcher = serving_of(tmp_path, Script(hang=True))

    async def serve() -> None:
        async with aclosing(serving.run(await prepared(serving, "a" * (INLINE_CHARACTERS + 1)))) as events:
            async for _ in events:
                pass

    work = asyncio.create_task(serve())
    await asyncio.sleep(0)
    assert serving.active, "the text is being tokenized, in a thread"
    idle = asyncio.create_task(serving.wait_idle())
    await until(lambda: dispatcher.generations or idle.done())
    done, _ = await asyncio.wait((idle,), timeout=0.2)
    assert not done
    work.cancel()
    await asyncio.wait((work, idle))


async def test_usage(tmp_path: Path) -> None:
    serving, _ = serving_of(tmp_path, HELLO)
    request = await prepared(serving, "abc", "de", n=2)
    cached = [3, 1, 0, 2]
    ends = [ChoiceEnd(choice, "stop", 10, cached[choice], Timeline()) for choice in (2, 0, 3, 1)]
    usage = usage_of(request, ends)
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (5, 40, 1)


LIBRARY = byte_tokenizer()
TOKENIZER = Tokenizer(LIBRARY, VOCAB_SIZE, frozenset({IM_END}), "test")


def collect(deltas: list[list[int]], stops: list[str], min_tokens: int) -> tuple[str, int]:
    sampling = ResolvedSampling(1.0, 1.0, 0, 0, 0, 1000, min_tokens=min_tokens)
    answer = AnswerText(TOKENIZER, sampling, TextRules(tuple(stops)))
    text = ""
    for delta in deltas:
        piece = answer.add(delta)
        text += piece.text
        if piece.stopped:
            return text, answer.num_tokens
    return text + answer.finish().text, answer.num_tokens


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from([97, 98, 0xC3, 0xA9, 256]), max_size=30),
    st.lists(st.sampled_from(["ab", "aab", "é", "b"]), max_size=2),
    st.integers(0, 5),
    st.lists(st.integers(1, 7), min_size=30, max_size=30),
)
def test_the_answer_does_not_depend_on_how_tokens_come(
    tokens: list[int], stops: list[str], min_tokens: int, sizes: list[int]
) -> None:
    deltas, rest = [], tokens
    for size in sizes:
        deltas.append(rest[:size])
        rest = rest[size:]
    one_by_one = collect([[token] for token in tokens], stops, min_tokens)
    assert collect(deltas, stops, min_tokens) == one_by_one
    if not stops:
        assert one_by_one == (LIBRARY.decode(tokens), len(tokens))
