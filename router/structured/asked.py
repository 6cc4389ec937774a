"""What a client asks an answer to match, as HTTP bodies say it and as the request path carries it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from router.errors import InvalidRequestError

MAX_CHOICES = 1024

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

    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$", description="Has no effect.")
    description: str | None = Field(default=None, description="Has no effect.")
    json_schema: dict[str, Any] | bool | None = Field(
        default=None, alias="schema", description="JSON Schema. Default: any value."
    )
    strict: bool | None = Field(
        default=None,
        description="Also refuse schemas that OpenAI's strict mode refuses. The schema holds either way.",
    )


class ResponseFormat(_Part):
    """OpenAI's form."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = Field(default=None, description="With the type json_schema.")


class StructuredOutputs(_Part):
    """vLLM's form: exactly one of these."""

    json_value: dict[str, Any] | bool | str | None = Field(
        default=None, alias="json", description="JSON Schema, or its text."
    )
    regex: str | None = Field(default=None, description="For the whole answer.")
    choice: list[str] | None = Field(
        default=None, min_length=1, max_length=MAX_CHOICES, description="The answer is one of these."
    )
    grammar: str | None = Field(default=None, description="Lark (llguidance's dialect) or GBNF.")
    json_object: bool | None = Field(default=None, description="Any JSON object.")


class StructuredFields(BaseModel):
    """Parameters of a body; at most one of them may ask for something."""

    response_format: ResponseFormat | None = Field(
        default=None, description="What the answer must be. Default: text."
    )
    structured_outputs: StructuredOutputs | None = Field(default=None, description="What it must match.")
    guided_json: dict[str, Any] | bool | str | None = Field(
        default=None, description="Former name of structured_outputs.json."
    )
    guided_regex: str | None = Field(default=None, description="Former name of structured_outputs.regex.")
    guided_choice: list[str] | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_CHOICES,
        description="Former name of structured_outputs.choice.",
    )
    guided_grammar: str | None = Field(default=None, description="Former name of structured_outputs.grammar.")

    def asked_answer(self) -> AskedAnswer | None:
        """The one thing that is asked for; None for none. Raises InvalidRequestError for two."""
        asked = [*_of_format(self.response_format), *_of_outputs(self.structured_outputs)]
        guided: Mapping[str, object] = {
            "json": self.guided_json,
            "regex": self.guided_regex,
            "choice": self.guided_choice,
            "grammar": self.guided_grammar,
        }
        asked += [
            _of_value(name, value, f"guided_{name}") for name, value in guided.items() if value is not None
        ]
        if len(asked) > 1:
            names = " and ".join(each.param for each in asked[:2])
            raise InvalidRequestError(
                f"{names} cannot be combined; give one of them.", asked[1].param, "invalid_value"
            )
        return asked[0] if asked else None


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
    asked = [
        _of_value(name, value, f"structured_outputs.{name}")
        for name, value in values.items()
        if value is not None
    ]
    if not asked:
        raise InvalidRequestError(
            f"structured_outputs needs one of: {', '.join(values)}.", "structured_outputs", "invalid_value"
        )
    return asked


def _of_value(name: str, value: object, param: str) -> AskedAnswer:
    match name:
        case "json":
            return AskedAnswer("json_schema", value if isinstance(value, str) else json.dumps(value), param)
        case "choice":
            return AskedAnswer("choice", json.dumps(value), param)
        case "json_object":
            return AskedAnswer("json_object", "", param)
        case "regex":
            return AskedAnswer("regex", str(value), param)
        case _:
            return AskedAnswer("grammar", str(value), param)
