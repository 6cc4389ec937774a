"""Answers of random weights at temperature 1 match their grammar, whatever happens to them on the way."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from engine.api import EngineRequest, FinishReason, GrammarKind, GrammarSpec, SamplingParams
from engine.core import LLMEngine
from engine.grammar.base import GrammarError
from engine.grammar.guidance import GuidanceCompiler
from engine.models.decoder import Decoder
from engine.models.loader import load_model
from tests.engine.digest_model import Answers, run_all
from tests.support.engines import engine_over, still_clock
from tests.support.tiny_models import tiny_llama
from tests.support.tiny_tokenizer import IM_END

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "kind": {"enum": ["cat", "dog", None]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
        "size": {"type": "integer", "minimum": -20, "maximum": 300},
    },
    "required": ["name", "kind", "size"],
    "additionalProperties": False,
}
PATTERN = "(yes|no){1,4}[a-f]{0,6}!"
JSON = GrammarSpec(
    GrammarKind.JSON_SCHEMA, json.dumps({**SCHEMA, "x-guidance": {"whitespace_flexible": False}})
)
GRAMMARS = (
    JSON,
    GrammarSpec(GrammarKind.REGEX, PATTERN),
    GrammarSpec(GrammarKind.LARK, 'start: item ("," item)~1..3\nitem: /[0-9]{1,3}/'),
)


def request(number: int, **changes: object) -> EngineRequest:
    sampling = SamplingParams(
        temperature=1.0, top_p=1.0, top_k=0, seed=number, choice=0, max_tokens=120,
        grammar=GRAMMARS[number % 3],
    )  # fmt: skip
    return EngineRequest(
        f"r{number}",
        tuple(range(1, 8 + number % 40)),
        replace(sampling, **changes),  # type: ignore[arg-type]
    )


REQUESTS = [request(number) for number in range(60)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Decoder:
    return load_model(folder)


@pytest.fixture(scope="module")
def grammars(folder: Path, model: Decoder) -> GuidanceCompiler:
    return GuidanceCompiler(folder / "tokenizer.json", model.config.vocab_size, model.config.eos_token_ids)


@pytest.fixture(scope="module")
def alone(model: Decoder, grammars: GuidanceCompiler) -> Answers:
    """Every request by itself."""
    engine, _ = engine_over(model, grammars=grammars)
    answers = Answers()
    for wanted in REQUESTS:
        engine.submit(wanted)
        while engine.has_work():
            answers.take(engine.step())
    return answers


def text_of(tokens: tuple[int, ...]) -> str:
    return bytes(token_id for token_id in tokens if token_id != IM_END).decode()


def check(answers: Answers, number: int) -> None:
    tokens, end = answers.of(f"r{number}")
    assert end is FinishReason.STOP
    text = text_of(tokens)
    match number % 3:
        case 0:
            jsonschema.validate(json.loads(text), SCHEMA)
        case 1:
            assert re.fullmatch(PATTERN, text)
        case 2:
            assert re.fullmatch("[0-9]{1,3}(,[0-9]{1,3}){1,3}", text)


def test_completed_answers_match(alone: Answers) -> None:
    for number in range(len(REQUESTS)):
        check(alone, number)
    assert len({alone.of(f"r{number}")[0] for number in range(0, 60, 3)}) > 15, "they are random"


def assert_same(answers: Answers, alone: Answers) -> None:
    for wanted in REQUESTS:
        assert answers.of(wanted.request_id) == alone.of(wanted.request_id)


@pytest.mark.parametrize("swap_memory_bytes", [0, 1 << 24])
def test_batched_and_preempted(
    model: Decoder, grammars: GuidanceCompiler, alone: Answers, swap_memory_bytes: int
) -> None:
    engine, _ = engine_over(
        model,
        num_blocks=24,
        grammars=grammars,
        clock=still_clock,
        prefill_chunk=9,
        max_model_len=200,
        swap_memory_bytes=swap_memory_bytes,
    )
    for wanted in REQUESTS:
        engine.submit(wanted)
    answers, outputs = run_all(engine)
    assert not any(output.failures for output in outputs)
    stats = engine.stats()
    assert stats.preemptions_total > 0
    assert stats.swaps_total == (stats.preemptions_total if swap_memory_bytes else 0)
    assert stats.swap_blocks_used == 0
    assert_same(answers, alone)


def test_handed_over_to_where_others_are_swapped_for_it(
    model: Decoder, grammars: GuidanceCompiler, alone: Answers
) -> None:
    """Priorities, resumed answers, reservations and local prefills beside each other in a pool too small."""
    prefill, source = engine_over(model, num_blocks=400, grammars=grammars)
    decode, target = engine_over(
        model, num_blocks=26, grammars=grammars, clock=still_clock, max_model_len=200, prefill_chunk=9
    )
    wanted = [
        replace(each, priority=number % 3, resumed_token_ids=alone.of(each.request_id)[0][: number % 4])
        for number, each in enumerate(REQUESTS)
    ]
    wanted = [each for each in wanted if len(alone.of(each.request_id)[0]) > 4]
    handed, local = wanted[::2], wanted[1::2]
    blocks: dict[str, list[int]] = {}
    first: dict[str, int] = {}
    for each in handed:
        prefill.submit_prefill(each)
    for output in run_all(prefill)[1]:
        for ready in output.kv_ready:
            blocks.setdefault(ready.request_id, []).extend(ready.new_block_ids)
        first.update((token.request_id, token.token_id) for token in output.tokens)
    answers = Answers()
    for each in local:
        decode.submit(each)
    waiting = sorted(handed, key=lambda each: each.priority)
    while waiting or decode.has_work():
        answers.take(decode.step())
        if waiting and (reservation := decode.reserve(waiting[0])) is not None:
            name = waiting.pop(0).request_id
            skip = reservation.num_unread_tokens // 16
            target[list(reservation.block_ids[skip:])] = source[blocks[name][skip:]]
            decode.adopt(name, first[name])
    stats = decode.stats()
    assert stats.swaps_total == stats.preemptions_total > 5
    for each in wanted:
        tokens, end = alone.of(each.request_id)
        assert answers.of(each.request_id) == (tokens[len(each.resumed_token_ids) :], end)
    assert_idle(decode)


def test_handed_over(model: Decoder, grammars: GuidanceCompiler, alone: Answers) -> None:
    prefill, source = engine_over(model, num_blocks=400, grammars=grammars)
    decode, target = engine_over(model, num_blocks=60, grammars=grammars)
    blocks: dict[str, list[int]] = {}
    first: dict[str, int] = {}
    for wanted in REQUESTS:
        prefill.submit_prefill(wanted)
    for output in run_all(prefill)[1]:
        for ready in output.kv_ready:
            blocks.setdefault(ready.request_id, []).extend(ready.new_block_ids)
        first.update((token.request_id, token.token_id) for token in output.tokens)
    answers = Answers()
    waiting = list(REQUESTS)
    while waiting or decode.has_work():
        if waiting and (reservation := decode.reserve(waiting[0])) is not None:
            name = waiting.pop(0).request_id
            skip = reservation.num_unread_tokens // 16
            target[list(reservation.block_ids[skip:])] = source[blocks[name][skip:]]
            decode.adopt(name, first[name])
        answers.take(decode.step())
    assert_same(answers, alone)


@pytest.mark.parametrize("given", [1, 3, 5])
def test_failed_over_in_mid_answer(
    model: Decoder, grammars: GuidanceCompiler, alone: Answers, given: int
) -> None:
    engine, _ = engine_over(model, num_blocks=400, grammars=grammars)
    resumed = [wanted for wanted in REQUESTS if len(alone.of(wanted.request_id)[0]) > given]
    assert len(resumed) > 30
    for wanted in resumed:
        tokens, _ = alone.of(wanted.request_id)
        engine.submit(replace(wanted, resumed_token_ids=tokens[:given]))
    answers, _ = run_all(engine)
    for wanted in resumed:
        tokens, end = alone.of(wanted.request_id)
        assert answers.of(wanted.request_id) == (tokens[given:], end)


def test_with_everything_else_on(model: Decoder, grammars: GuidanceCompiler) -> None:
    engine, _ = engine_over(model, num_blocks=400, grammars=grammars)
    for number in range(30):
        engine.submit(
            request(
                number,
                repetition_penalty=1.2,
                presence_penalty=0.5,
                frequency_penalty=0.3,
                min_p=0.01,
                top_k=30,
                top_p=0.95,
                typical_p=0.9,
                logit_bias=((ord("a"), 1.0),),
                logprobs=2,
                min_tokens=4,
                bad_words=((ord("Q"),),),
                ignore_eos=number % 2 == 0,
            )
        )
    answers, outputs = run_all(engine)
    assert not any(output.failures for output in outputs)
    for number in range(30):
        check(answers, number)


def test_max_tokens_cut_an_answer_short(model: Decoder, grammars: GuidanceCompiler) -> None:
    engine, _ = engine_over(model, grammars=grammars)
    engine.submit(request(0, max_tokens=4))
    answers, _ = run_all(engine)
    tokens, end = answers.of("r0")
    assert (len(tokens), end) == (4, FinishReason.LENGTH)
    assert text_of(tokens) == '{"na'


def test_it_ends_with_the_last_token_that_may_come(model: Decoder, grammars: GuidanceCompiler) -> None:
    """No EOS need follow, and min_tokens cannot make up what the grammar does not have."""
    engine, _ = engine_over(model, grammars=grammars)
    spec = GrammarSpec(GrammarKind.REGEX, "abc")
    engine.submit(request(0, grammar=spec, min_tokens=10, ignore_eos=True))
    answers, _ = run_all(engine)
    assert answers.of("r0") == (tuple(b"abc"), FinishReason.STOP)


def test_min_tokens_hold_while_the_grammar_can_go_on(model: Decoder, grammars: GuidanceCompiler) -> None:
    engine, _ = engine_over(model, grammars=grammars)
    spec = GrammarSpec(GrammarKind.REGEX, "[a-z]+")
    for number in range(20):
        engine.submit(request(number, grammar=spec, min_tokens=6, logit_bias=((IM_END, 100.0),)))
    answers, _ = run_all(engine)
    for number in range(20):
        tokens, end = answers.of(f"r{number}")
        assert end is FinishReason.STOP
        assert len(tokens) == 7
        assert tokens[-1] == IM_END


def test_refusals_leave_nothing_behind(model: Decoder, grammars: GuidanceCompiler) -> None:
    engine, _ = engine_over(model, grammars=grammars)
    broken = request(0, grammar=GrammarSpec(GrammarKind.REGEX, "(a"))
    for call in (engine.submit, engine.submit_prefill, engine.reserve):
        with pytest.raises(GrammarError, match="invalid regex"):
            call(broken)
    with pytest.raises(GrammarError, match="cannot follow"):
        engine.submit(replace(request(1), resumed_token_ids=tuple(b"maybe")))
    without, _ = engine_over(model)
    with pytest.raises(ValueError, match="takes no grammars"):
        without.submit(request(2))
    for each in (engine, without):
        assert_idle(each)
    engine.submit(request(1))
    check(run_all(engine)[0], 1)


def test_a_first_token_that_does_not_match_is_not_adopted(model: Decoder, grammars: GuidanceCompiler) -> None:
    engine, _ = engine_over(model, grammars=grammars)
    assert engine.reserve(request(1)) is not None
    with pytest.raises(GrammarError, match="cannot follow"):
        engine.adopt("r1", ord("q"))
    engine.abandon("r1")
    assert_idle(engine)


def test_a_row_that_nothing_is_left_for_fails_alone(model: Decoder, grammars: GuidanceCompiler) -> None:
    engine, _ = engine_over(model, grammars=grammars)
    engine.submit(request(1))
    engine.submit(replace(request(4, allowed_token_ids=frozenset({ord("q")})), request_id="stuck"))
    answers, outputs = run_all(engine)
    (failure,) = [failure for output in outputs for failure in output.failures]
    assert failure.request_id == "stuck"
    assert failure.message.startswith("no token may come next")
    check(answers, 1)
    assert_idle(engine)


def assert_idle(engine: LLMEngine) -> None:
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.blocks_pinned) == (0, 0, 0)
    engine.check_invariants()
