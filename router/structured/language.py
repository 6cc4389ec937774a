"""Languages of answers, in llguidance's Lark dialect: what can be put together from parts.

Each part is the right side of a rule with the rules it needs. Names that begin with `kv_` are ours.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import llguidance
from llguidance.gbnf_to_lark import any_to_lark

from router.structured.json_schema import Schema

# One spelling for each character of a string: a member's name could otherwise be written in two ways and
# escape what is said of it. White space is bounded: small models fall into writing it for ever.
_GUIDANCE = {"json_allowed_escapes": 'nrbtf\\"', "whitespace_pattern": r"[ \n\r\t]{1,64}"}
ANYTHING = "(?s:.*)"
# Strings, regular expressions and comments of a Lark grammar, and between them the name of its first rule.
_START = re.compile(
    r"""("(?:\\.|[^"\\\n])*"|/(?![*/])(?:\\.|[^/\\\n])+/|//[^\n]*|\#[^\n]*)|(?<![\w-])start(?![\w-])"""
)


@dataclass(frozen=True, slots=True)
class Language:
    """The right side of a rule, and other rules."""

    body: str
    rules: tuple[str, ...] = ()

    def lark(self) -> str:
        """The whole grammar."""
        return "\n".join((f"start: {self.body}", *self.rules)) + "\n"


@dataclass(frozen=True, slots=True)
class Marker:
    """A marker in answers. `special`: a special token of the model, which no text matches."""

    text: str
    special: bool = False

    @property
    def term(self) -> str:
        """Inside a rule."""
        return self.text if self.special else literal(self.text)

    @property
    def pattern(self) -> str:
        """Inside a regular expression of Lark's. Not for a special token."""
        return re.escape(self.text).replace("/", r"\/")


def guided(schema: Schema) -> str:
    """JSON text of a schema, as the engine's compiler takes it."""
    # `true` has no place for options; an empty schema means the same.
    members: dict[str, object] = {} if schema is True else {"anyOf": [False]} if schema is False else schema
    return json.dumps({**members, "x-guidance": _GUIDANCE}, ensure_ascii=False)


def json_language(schema: Schema, name: str) -> Language:
    """JSON that matches a checked schema."""
    return Language(name, (f"{name}: %json {guided(schema)}",))


def literal(text: str) -> str:
    """One text."""
    return json.dumps(text)


def choice_language(texts: list[str]) -> Language:
    """One of several texts."""
    return Language("(" + " | ".join(map(literal, texts)) + ")")


def regex_language(regex: str) -> Language:
    """A regular expression (Rust's dialect) that the whole answer matches."""
    return Language("kv_regex", (f"kv_regex: /{llguidance.regex_to_lark(regex, '')}/",))


def grammar_language(grammar: str) -> Language:
    """A client's Lark or GBNF grammar, whose first rule is `start` or `root`. Raises ValueError."""
    rules = any_to_lark(grammar)
    return Language("kv_start", (_START.sub(lambda match: match[1] or "kv_start", rules),))


def after_reasoning(answer: Language, start: Marker, end: Marker, *, opened: bool, spaced: bool) -> Language:
    """Reasoning, which is free, and then the answer.

    Args:
        answer: what follows.
        start: before the reasoning.
        end: after it.
        opened: the prompt ends inside the reasoning, so there must be some; else it may be left out.
        spaced: white space may stand between.
    """
    rules: list[str]
    if end.special:
        lead = "" if opened else f"/\\s{{0,4}}/ {start.term} "
        rules = [f"kv_reasoning: {lead}kv_thoughts {end.term}", f"kv_thoughts: /{ANYTHING}/"]
    else:
        lead = "" if opened else rf"\s{{0,4}}{start.pattern}"
        rules = [f"kv_reasoning[lazy]: /{lead}{ANYTHING}{end.pattern}/"]
    thought = "kv_reasoning kv_gap" if spaced else "kv_reasoning"
    rules.append(r"kv_gap: /\s{0,8}/")
    body = f"{thought} ({answer.body})" if opened else f"({thought})? ({answer.body})"
    return Language(body, (*rules, *answer.rules))
