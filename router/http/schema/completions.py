"""Bodies of plain completions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Self

from pydantic import Field, PlainValidator, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from router.described import asked
from router.http import unbuilt
from router.http.schema.common import GenerationBody, drop_common
from router.model_reading import AskedOfAnswers
from router.prepare import MAX_GENERATIONS
from router.prompt_options import PromptOptions
from router.prompts import Prompt, TextPrompt, TokenPrompt
from router.sampling_options import SamplingOptions
from router.structured.asked import StructuredFields


def _prompts(value: object) -> tuple[TextPrompt | TokenPrompt, ...]:
    """A string, strings, token ids, or lists of token ids."""
    if isinstance(value, str):
        return (TextPrompt(value),)
    if not isinstance(value, list):
        raise PydanticCustomError("prompt", "must be a string, strings, token ids, or lists of token ids")
    if not value:
        raise PydanticCustomError("prompt", "is empty")
    if all(isinstance(item, str) for item in value):
        return tuple(TextPrompt(item, f"prompt[{position}]") for position, item in enumerate(value))
    if _are_ids(value):
        return (TokenPrompt(tuple(value)),)
    if all(isinstance(item, list) and _are_ids(item) for item in value):
        return tuple(TokenPrompt(tuple(item), f"prompt[{position}]") for position, item in enumerate(value))
    raise PydanticCustomError("prompt", "mixes kinds: only strings, only integers, or only lists of integers")


def _are_ids(values: list[object]) -> bool:
    # Not isinstance: true and false are ints too. Not a loop: there may be a million.
    return set(map(type, values)) <= {int}


IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}}
Prompts = Annotated[
    tuple[TextPrompt | TokenPrompt, ...],
    PlainValidator(_prompts),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}},
                IDS,
                {"type": "array", "items": IDS},
            ]
        }
    ),
]


class CompletionRequest(GenerationBody, PromptOptions, StructuredFields, SamplingOptions):
    """Body of `/v1/completions`."""

    prompt: Prompts = Field(
        description=asked(
            "A prompt or several; each gets n answers, numbered prompt by prompt. Token ids are taken as "
            "they "
            "are.",
            f"a text, texts, token ids, or lists of token ids; prompts times answers up to {MAX_GENERATIONS}",
            "none, it must be given",
        )
    )

    @model_validator(mode="after")
    def _can_be_streamed(self) -> Self:
        if self.stream and self.best_of is not None and self.best_of > (self.n or 1):
            raise PydanticCustomError("best_of", "best_of cannot be streamed where it is more than n")
        return self

    def prompts(self) -> tuple[Prompt, ...]:
        """At least one."""
        if self.add_special_tokens is not False:
            return self.prompt
        return tuple(
            replace(prompt, add_special_tokens=False) if isinstance(prompt, TextPrompt) else prompt
            for prompt in self.prompt
        )

    def answers(self) -> AskedOfAnswers:
        """What is asked of the answers. Raises InvalidRequestError."""
        return AskedOfAnswers(answer=self.asked_answer())

    @classmethod
    def from_json(cls, values: Mapping[str, object]) -> Self:
        """Validates a parsed body. Raises ValidationError and InvalidRequestError."""
        return cls.model_validate(drop_common(values, unbuilt.COMPLETION))
