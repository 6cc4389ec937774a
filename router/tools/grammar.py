"""Languages of calls: what is generated is a call that its function's schema takes."""

from __future__ import annotations

import json

from router.structured.json_schema import Schema, moved_down
from router.structured.language import ANYTHING, Language, Marker, json_language, literal
from router.tools.parsers.base import CallForm

# A model without sense would otherwise call until its context is full.
MAX_CALLS = 16
_ARGUMENTS = "kv_arguments"


def calls_language(
    form: CallForm, start: Marker, end: Marker, schemas: dict[str, Schema], many: bool
) -> Language:
    """One call of the functions, or `many`: up to MAX_CALLS where the family writes several.

    Args:
        form: how the family writes calls.
        start: its marker before a call; not written where calls can stand bare.
        end: its marker after it.
        schemas: checked schema of each function's arguments.
        many: more than one may come.
    """
    calls = _each_call(form, schemas)
    if form.bare:
        return calls
    call = f"{start.term} kv_call {end.term}"
    body = f"{call} ({literal(form.between)} {call}){{0,{MAX_CALLS - 1}}}" if many and form.parallel else call
    return Language(body, calls.rules)


def text_or_calls(
    form: CallForm, start: Marker, end: Marker, schemas: dict[str, Schema], reasoning: str
) -> Language:
    """Free text in which every call matches its schema.

    Args:
        form: how the family writes calls.
        start: its marker before a call.
        end: its marker after it.
        schemas: checked schema of each function's arguments.
        reasoning: regular expression of how reasoning begins, in which calls do not count; empty for none.
    """
    calls = _each_call(form, schemas)
    if form.bare:
        text = rf"kv_said: /\s{{0,64}}([^{{\s]{ANYTHING})?/"
        return Language("kv_call | kv_said", (text, *calls.rules))
    rules = [f"kv_rest: /{ANYTHING}/"]
    if start.special:
        rules.append(f"kv_before: kv_rest {start.term}")
    else:
        apart = f" & ~/{reasoning}{ANYTHING}/" if reasoning else ""
        rules.append(f"KV_BEFORE: /{ANYTHING}{start.pattern}/{apart}")
        rules.append("kv_before[lazy]: KV_BEFORE")
    body = f"(kv_before kv_call {end.term})* kv_rest"
    return Language(body, (*rules, *calls.rules))


def _each_call(form: CallForm, schemas: dict[str, Schema]) -> Language:
    rules: list[str] = []
    for index, (name, schema) in enumerate(schemas.items()):
        call = _bare_call(form, name, schema, index) if form.bare else _marked_call(form, name, schema, index)
        rules.extend((f"kv_call_{index}: {call.body}", *call.rules))
    names = " | ".join(f"kv_call_{index}" for index in range(len(schemas)))
    return Language("kv_call", (f"kv_call: {names}", *rules))


def _marked_call(form: CallForm, name: str, schema: Schema, index: int) -> Language:
    """Spelled as the family's template spells it."""
    arguments = json_language(schema, f"kv_arguments_{index}")
    head = f'{form.lead}{{"name": {json.dumps(name)}, "{form.arguments}": '
    return Language(f"{literal(head)} {arguments.body} {literal('}' + form.lead)}", arguments.rules)


def _bare_call(form: CallForm, name: str, schema: Schema, index: int) -> Language:
    """All JSON, so that it can stand beside an answer in JSON: the library would have to decide too early."""
    call: Schema = {
        "type": "object",
        "properties": {"name": {"const": name}, form.arguments: {"$ref": f"#/$defs/{_ARGUMENTS}"}},
        "required": ["name", form.arguments],
        "additionalProperties": False,
        "$defs": {_ARGUMENTS: moved_down(schema, _ARGUMENTS)},
    }
    return json_language(call, f"kv_object_{index}")
