"""Bodies of requests, as the OpenAPI page shows them and as they are validated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from router.http import unbuilt
from router.prepare import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from router.sampling_options import SamplingOptions

# A day: longer than any answer, short enough for every clock.
MAX_TIMEOUT_S = 86_400.0
_STREAM_OPTIONS = frozenset(("include_usage", "continuous_usage_stats"))


class StreamOptions(BaseModel):
    """Options of a streaming answer. Unknown ones are accepted while null or false."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    include_usage: bool | None = Field(
        default=None, description="A last chunk without choices carries the usage; the others say null."
    )
    continuous_usage_stats: bool | None = Field(
        default=None, description="With include_usage: every chunk carries the usage so far."
    )


def _content(value: object) -> str:
    """A string, or text parts, which are joined by line ends."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise PydanticCustomError("content", "must be a string or a list of text parts")
    texts: list[str] = []
    for position, part in enumerate(value):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            raise PydanticCustomError(
                "content", "part {position} must be of the type 'text'", {"position": position}
            )
        if not isinstance(part.get("text"), str):
            raise PydanticCustomError("content", "part {position} lacks its 'text'", {"position": position})
        texts.append(part["text"])
    return "\n".join(texts)


_TEXT_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
Content = Annotated[
    str,
    PlainValidator(_content),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": _TEXT_PART}]}),
]


class ChatMessage(BaseModel):
    """One message of a chat."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    role: str = Field(
        min_length=1,
        description="`system`, `user`, `assistant`, `tool`, or what else the model's chat template knows.",
    )
    content: Content = Field(description="Text, or a list of text parts, which are joined by line ends.")
    name: str | None = Field(default=None, description="Given to the chat template.")
    tool_call_id: str | None = Field(default=None, description="Given to the chat template.")

    def for_template(self) -> dict[str, str]:
        """The fields that were given."""
        return {name: value for name, value in self if value is not None}


class GenerationBody(SamplingOptions):
    """What chat and plain completions share."""

    model: str = Field(min_length=1, description="The served model's name, as `/v1/models` lists it.")
    stream: bool | None = Field(
        default=None, description="Send server-sent events as text comes, then `data: [DONE]`. Default false."
    )
    stream_options: StreamOptions | None = None
    timeout: float | None = Field(
        default=None,
        gt=0,
        le=MAX_TIMEOUT_S,
        allow_inf_nan=False,
        description="Seconds after which the request ends with an error, also while it waits. The header "
        "`x-request-timeout` does the same; the shorter one holds. Default: none.",
    )
    cache_salt: str | None = Field(
        default=None,
        description="Requests share cached prompt prefixes only under an equal salt. Default: the empty one.",
    )
    user: str | None = Field(default=None, description="Accepted; has no effect.")
    safety_identifier: str | None = Field(default=None, description="Accepted; has no effect.")
    prompt_cache_key: str | None = Field(
        default=None, description="Accepted; has no effect: prefixes are found by their content."
    )

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError("stream_options", "stream_options needs stream to be true")
        return self

    def sampling(self) -> SamplingOptions:
        """The sampling options alone. They are validated already."""
        names = SamplingOptions.model_fields
        return SamplingOptions.model_construct(**{name: getattr(self, name) for name in names})


class ChatCompletionRequest(GenerationBody):
    """Body of `/v1/chat/completions`."""

    messages: list[ChatMessage] = Field(min_length=1, description="The chat so far, oldest message first.")
    max_completion_tokens: int | None = Field(
        default=None, ge=1, description="OpenAI's newer name of max_tokens; both may be given if equal."
    )

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        both = (self.max_tokens, self.max_completion_tokens)
        if None not in both and both[0] != both[1]:
            raise PydanticCustomError(
                "max_tokens", "max_tokens and max_completion_tokens are given and differ"
            )
        return self

    def sampling(self) -> SamplingOptions:
        """The sampling options, with max_tokens under whichever name it was given."""
        limit = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        return super().sampling().model_copy(update={"max_tokens": limit})

    def prompts(self) -> tuple[Prompt, ...]:
        """The chat as the one prompt."""
        return (ChatPrompt(tuple(message.for_template() for message in self.messages)),)

    @classmethod
    def from_json(cls, values: Mapping[str, object]) -> Self:
        """Validates a parsed body. Raises ValidationError and InvalidRequestError."""
        kept = _drop_common(values, unbuilt.CHAT)
        messages = kept.get("messages")
        if isinstance(messages, list):
            kept["messages"] = [
                unbuilt.drop_neutral(message, unbuilt.MESSAGE, f"messages[{position}].")
                if isinstance(message, dict)
                else message
                for position, message in enumerate(messages)
            ]
        return cls.model_validate(kept)


def _prompts(value: object) -> tuple[Prompt, ...]:
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


_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}}
Prompts = Annotated[
    tuple[Prompt, ...],
    PlainValidator(_prompts),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}},
                _IDS,
                {"type": "array", "items": _IDS},
            ]
        }
    ),
]


class CompletionRequest(GenerationBody):
    """Body of `/v1/completions`."""

    prompt: Prompts = Field(
        description="A prompt or several; each gets n choices, numbered prompt by prompt. Token ids are "
        "taken as they are, text gets the tokenizer's own special tokens."
    )

    def prompts(self) -> tuple[Prompt, ...]:
        """At least one."""
        return self.prompt

    @classmethod
    def from_json(cls, values: Mapping[str, object]) -> Self:
        """Validates a parsed body. Raises ValidationError and InvalidRequestError."""
        kept = dict(values)
        # As many tried as returned: there is nothing to be the best of.
        if "best_of" in kept and kept["best_of"] == kept.get("n"):
            del kept["best_of"]
        return cls.model_validate(_drop_common(kept, unbuilt.COMPLETION))


def _drop_common(values: Mapping[str, object], table: Mapping[str, unbuilt.Neutral]) -> dict[str, object]:
    kept = unbuilt.drop_neutral(values, table)
    options = kept.get("stream_options")
    if isinstance(options, dict):
        kept["stream_options"] = unbuilt.drop_unset_options(options, _STREAM_OPTIONS, "stream_options.")
    return kept
