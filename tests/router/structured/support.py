"""What the tests of structured output share."""

from __future__ import annotations

import json

from router.generation import GrammarSpec
from router.structured.asked import AskedAnswer
from router.structured.compiler import GrammarCompiler, Observe
from router.structured.wanted import Reasoning, Wanted
from router.tools.asked import ToolFields
from router.tools.parsers.base import CallForm
from tests.support.tiny_tokenizer import IM_END, VOCAB_SIZE, byte_tokenizer


def _unobserved(outcome: str, seconds: float) -> None:
    """Nobody counts."""


def compiler(observe: Observe = _unobserved) -> GrammarCompiler:
    return GrammarCompiler(byte_tokenizer().to_str, VOCAB_SIZE, frozenset((IM_END,)), observe)


def schema(value: object, strict: bool = False) -> AskedAnswer:
    return AskedAnswer("json_schema", json.dumps(value), "schema", strict)


def answer(asked: AskedAnswer, reasoning: Reasoning = "no") -> Wanted:
    return Wanted(asked, None, None, reasoning)


def calls(
    form: CallForm, fields: ToolFields, reasoning: Reasoning = "no", asked: AskedAnswer | None = None
) -> Wanted:
    return Wanted(asked, fields.asked_calls(), form, reasoning)


async def spec_of(wanted: Wanted) -> GrammarSpec:
    spec = await compiler().resolve(wanted)
    assert spec is not None
    return spec
