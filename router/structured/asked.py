"""What a client asks an answer to match, as HTTP bodies say it and as the request path carries it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from grammars.compiling import MAX_SOURCE_CHARS
from router.described import SWITCH, asked
from router.errors import InvalidRequestError
from router.structured.patterns import MAX_LENGTH

MAX_CHOICES = 1024
_SCHEMA = f"JSON Schema of the supported keywords, up to {MAX_SOURCE_CHARS} characters"
_REGEX = f"Rust's dialect without look-around, up to {MAX_LENGTH} characters"
_CHOICE = f"1 to {MAX_CHOICES} texts of at least 1 character"
_GRAMMAR = f"Lark as llguidance reads it, or GBNF, up to {MAX_SOURCE_CHARS} characters"

AskedKind = Literal["json_schema", "json_object", "regex", "choice", "grammar"]


@dataclass(frozen=True, slots=True)
class AskedAnswer:
    """What an answer must match, not checked yet.

    Attributes:
        kind: what `source` is.
        source: JSON Schema or a list of strings as JSON text, a regular expression, or a Lark or GBNF
            grammar; empty for json_object.
        param: the parameter that asked for it.
        strict: the schema must also keep to OpenAI's strict mode.
    """

    kind: AskedKind
    source: str
    param: str
    strict: bool = False


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=True)


class JsonSchemaFormat(_Part):
    """A schema and how strictly it is meant."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9_-]{1,64}$",
        description=asked("Has no effect.", "1 to 64 letters, digits, `_` and `-`", "none, it must be given"),
    )
    description: str | None = Field(default=None, description=asked("Has no effect.", "any text", "none"))
    json_schema: dict[str, Any] | bool | None = Field(
        default=None, alias="schema", description=asked("JSON Schema of the answer.", _SCHEMA, "true")
    )
    strict: bool | None = Field(
        default=None,
        description=asked(
            "Also refuse schemas that OpenAI's strict mode refuses. The schema holds either way.",
            SWITCH,
            "false",
        ),
    )


class ResponseFormat(_Part):
    """OpenAI's form."""

    type: Literal["text", "json_object", "json_schema"] = Field(
        description=asked(
            "What an answer is.", "`text`, `json_object` or `json_schema`", "none, it must be given"
        )
    )
    json_schema: JsonSchemaFormat | None = Field(
        default=None,
        description=asked("Which JSON.", "an object, with the type `json_schema` and with no other", "none"),
    )


class StructuredOutputs(_Part):
    """vLLM's form: exactly one of these."""

    json_value: dict[str, Any] | bool | str | None = Field(
        default=None,
        alias="json",
        description=asked("JSON Schema of the answer.", f"{_SCHEMA}, or its text", "none"),
    )
    regex: str | None = Field(
        default=None, description=asked("Regular expression of the whole answer.", _REGEX, "none")
    )
    choice: list[str] | None = Field(
        default=None,
        description=asked("The answer is one of these.", _CHOICE, "none"),
    )
    grammar: str | None = Field(default=None, description=asked("Grammar of the answer.", _GRAMMAR, "none"))
    json_object: bool | None = Field(
        default=None, description=asked("The answer is a JSON object.", SWITCH, "false")
    )


STRUCTURED_OPTIONS = frozenset(("json", "regex", "choice", "grammar", "json_object"))


class StructuredFields(BaseModel):
    """Parameters of a body; at most one of them may ask for something."""

    response_format: ResponseFormat | None = Field(
        default=None, description=asked("What an answer is.", "an object", "text")
    )
    structured_outputs: StructuredOutputs | None = Field(
        default=None, description=asked("What an answer matches.", "one of its fields", "anything")
    )
    guided_json: dict[str, Any] | bool | str | None = Field(
        default=None,
        description=asked("Former name of structured_outputs.json.", f"{_SCHEMA}, or its text", "none"),
    )
    guided_regex: str | None = Field(
        default=None, description=asked("Former name of structured_outputs.regex.", _REGEX, "none")
    )
    guided_choice: list[str] | None = Field(
        default=None,
        description=asked("Former name of structured_outputs.choice.", _CHOICE, "none"),
    )
    guided_grammar: str | None = Field(
        default=None, description=asked("Former name of structured_outputs.grammar.", _GRAMMAR, "none")
    )

    def asked_answer(self) -> AskedAnswer | None:
        """The one thing that is asked for; None for none. Raises InvalidRequestError for two."""
        found = [*_of_format(self.response_format), *_of_outputs(self.structured_outputs)]
        guided: Mapping[str, object] = {
            "json": self.guided_json,
            "regex": self.guided_regex,
            "choice": self.guided_choice,
            "grammar": self.guided_grammar,
        }
        found += [
            _of_value(name, value, f"guided_{name}") for name, value in guided.items() if value is not None
        ]
        if len(found) > 1:
            names = " and ".join(each.param for each in found[:2])
            raise InvalidRequestError(
                f"{names} cannot be combined; give one of them.", found[1].param, "invalid_value"
            )
        return found[0] if found else None


def check_choices(texts: list[str], param: str) -> list[str]:
    """The texts. Raises InvalidRequestError for none, too many or an empty one."""
    if not 0 < len(texts) <= MAX_CHOICES or "" in texts:
        raise InvalidRequestError(f"{param} needs {_CHOICE}.", param, "invalid_value")
    return texts


def _of_format(given: ResponseFormat | None) -> list[AskedAnswer]:
    if given is None:
        return []
    if (given.type == "json_schema") != (given.json_schema is not None):
        raise InvalidRequestError(
            "response_format.json_schema must be given with the type 'json_schema' and with no other.",
            "response_format.json_schema",
            "invalid_value",
        )
    if given.json_schema is not None:
        schema = given.json_schema.json_schema
        source = json.dumps(True if schema is None else schema)
        param = "response_format.json_schema.schema"
        return [AskedAnswer("json_schema", source, param, bool(given.json_schema.strict))]
    return [AskedAnswer("json_object", "", "response_format")] if given.type == "json_object" else []


def _of_outputs(given: StructuredOutputs | None) -> list[AskedAnswer]:
    if given is None:
        return []
    values: Mapping[str, object] = {
        "json": given.json_value,
        "regex": given.regex,
        "choice": given.choice,
        "grammar": given.grammar,
        "json_object": given.json_object or None,
    }
    found = [
        _of_value(name, value, f"structured_outputs.{name}")
        for name, value in values.items()
        if value is not None
    ]
    if not found:
        raise InvalidRequestError(
            f"structured_outputs needs one of: {', '.join(values)}.", "structured_outputs", "invalid_value"
        )
    return found


def _of_value(name: str, value: object, param: str) -> AskedAnswer:
    match name:
        case "json":
            return AskedAnswer("json_schema", value if isinstance(value, str) else json.dumps(value), param)
        case "choice":
            texts = value if isinstance(value, list) else []
            return AskedAnswer("choice", json.dumps(check_choices(texts, param)), param)
        case "json_object":
            return AskedAnswer("json_object", "", param)
        case "regex":
            return AskedAnswer("regex", str(value), param)
        case _:
            return AskedAnswer("grammar", str(value), param)
