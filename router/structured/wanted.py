"""All that holds for one answer, to the one grammar that the engine keeps it to."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from grammars.compiling import MAX_SOURCE_CHARS
from router.errors import InvalidRequestError
from router.generation import GrammarSpec
from router.reasoning import think
from router.structured.asked import AskedAnswer
from router.structured.json_schema import CheckedSchema, Schema, checked_schema
from router.structured.language import (
    Language,
    Marker,
    after_reasoning,
    choice_language,
    grammar_language,
    guided,
    json_language,
    regex_language,
)
from router.structured.patterns import MAX_LENGTH
from router.tools.asked import AskedCalls, Function
from router.tools.grammar import calls_language, text_or_calls
from router.tools.parsers.base import CallForm

# "no": answers are not split; "may": the model may begin with reasoning; "open": the prompt did so for it.
Reasoning = Literal["no", "may", "open"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one request's answers are held to.

    Attributes:
        answer: what the client wants an answer to match; None for anything.
        calls: what it wants of calls; None without tools.
        form: how the model writes calls; given with `calls`.
        reasoning: what comes before.
        special: markers that are special tokens of the model.
    """

    answer: AskedAnswer | None
    calls: AskedCalls | None
    form: CallForm | None
    reasoning: Reasoning
    special: frozenset[str] = frozenset()

    @property
    def constrained(self) -> bool:
        """Whether a grammar is needed."""
        calls = self.calls
        if self.answer is not None or calls is None:
            return self.answer is not None
        return calls.demand == "required" or (
            calls.demand == "auto" and any(function.strict for function in calls.functions)
        )

    @property
    def spaced(self) -> bool:
        """Whether white space after the reasoning is none of the content's."""
        return self.answer is None or self.answer.kind in ("json_schema", "json_object")


@dataclass(frozen=True, slots=True)
class Draft:
    """A grammar, and the schemas in it with the parameters that they came from, to find what is at fault."""

    spec: GrammarSpec
    param: str
    schemas: tuple[CheckedSchema, ...]


def check_sizes(wanted: Wanted) -> None:
    """Raises InvalidRequestError for what is too long to be compiled, or kept in a cache."""
    asked = wanted.answer
    if asked is not None and len(asked.source) > MAX_SOURCE_CHARS:
        raise InvalidRequestError(
            f"{asked.param} has {len(asked.source)} characters; {MAX_SOURCE_CHARS} are allowed.",
            asked.param,
            "invalid_value",
        )
    functions = () if wanted.calls is None else wanted.calls.functions
    size = sum(len(function.parameters) for function in functions)
    if size > MAX_SOURCE_CHARS:
        raise InvalidRequestError(
            f"The tools' parameters have {size} characters; {MAX_SOURCE_CHARS} are allowed.",
            "tools",
            "invalid_value",
        )


def draft(wanted: Wanted) -> Draft:
    """The grammar of a constrained request. Raises InvalidRequestError, with the path of what is at fault."""
    return _Drafting(wanted).draft()


class _Drafting:
    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._schemas: list[CheckedSchema] = []

    def draft(self) -> Draft:
        wanted = self._wanted
        asked, calls = wanted.answer, wanted.calls
        if asked is not None and calls is not None and calls.demand == "required":
            raise InvalidRequestError(
                f"{asked.param} cannot be combined with {calls.offer} asking for a call.",
                asked.param,
                "invalid_value",
            )
        answer = None if asked is None else self._answer(asked)
        language = answer if calls is None or calls.demand == "none" else self._calls(calls, answer)
        assert language is not None
        param = asked.param if asked is not None else "tools"
        if wanted.reasoning != "no":
            language = after_reasoning(
                language,
                self._marker(think.START),
                self._marker(think.END),
                opened=wanted.reasoning == "open",
                spaced=wanted.spaced,
            )
        elif asked is not None and language is answer:
            return Draft(self._plain(asked, language), param, tuple(self._schemas))
        return Draft(GrammarSpec("lark", language.lark()), param, tuple(self._schemas))

    def _marker(self, text: str) -> Marker:
        return Marker(text, text in self._wanted.special)

    def _plain(self, asked: AskedAnswer, language: Language) -> GrammarSpec:
        if asked.kind in ("json_schema", "json_object"):
            return GrammarSpec("json_schema", guided(self._schemas[0].schema))
        return (
            GrammarSpec("regex", asked.source)
            if asked.kind == "regex"
            else GrammarSpec("lark", language.lark())
        )

    def _answer(self, asked: AskedAnswer) -> Language:
        match asked.kind:
            case "json_schema":
                return json_language(self._schema(asked.source, asked.param, asked.strict), "kv_answer")
            case "json_object":
                return json_language(self._schema('{"type": "object"}', asked.param, False), "kv_answer")
            case "choice":
                return choice_language(json.loads(asked.source))
            case "regex":
                if len(asked.source) > MAX_LENGTH:
                    raise InvalidRequestError(
                        f"{asked.param} is longer than {MAX_LENGTH} characters.", asked.param, "invalid_value"
                    )
                return regex_language(asked.source)
            case "grammar":
                try:
                    return grammar_language(asked.source)
                # The converter raises whatever it meets.
                except Exception as error:
                    raise InvalidRequestError(
                        f"{asked.param} is no grammar: {error}", asked.param, "invalid_grammar"
                    ) from error

    def _schema(self, source: str, param: str, strict: bool) -> Schema:
        try:
            parsed = json.loads(source)
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(
                f"{param} is no JSON: {error}.", param, "invalid_json_schema"
            ) from error
        checked = checked_schema(parsed, param, strict)
        self._schemas.append(checked)
        return checked.schema

    def _calls(self, calls: AskedCalls, answer: Language | None) -> Language:
        form = self._wanted.form
        assert form is not None
        start, end = self._marker(form.start), self._marker(form.end)
        free = calls.demand == "auto"
        schemas = {function.name: self._parameters(function, free) for function in calls.functions}
        many = calls.parallel
        if calls.demand == "required":
            return calls_language(form, start, end, schemas, many)
        if answer is None:
            begins = rf"\s{{0,4}}{Marker(think.START).pattern}" if self._wanted.reasoning == "may" else ""
            return text_or_calls(form, start, end, schemas, begins)
        called = calls_language(form, start, end, schemas, many)
        return Language(f"({answer.body}) | ({called.body})", (*answer.rules, *called.rules))

    def _parameters(self, function: Function, free: bool) -> Schema:
        """What is not strict is only an object where the model is free to call."""
        if free and not function.strict:
            return {"type": "object"}
        return self._schema(function.parameters, function.param, function.strict)
