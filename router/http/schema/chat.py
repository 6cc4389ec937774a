"""Bodies of chats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from router.described import SWITCH, asked
from router.http import unbuilt
from router.http.schema.common import GenerationBody, drop_common
from router.model_reading import AskedOfAnswers
from router.prompt_options import ChatOptions
from router.prompts import ChatPrompt, Prompt
from router.sampling_options import MAX_LOGPROBS, SamplingOptions
from router.structured.asked import StructuredFields
from router.tools.asked import ToolFields
from router.tools.history import ToolCall


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


_REQUIRED = "none, it must be given"
_TEXT_PART = {
    "type": "object",
    "properties": {
        "type": {"const": "text", "description": asked("The kind of part.", "`text`", _REQUIRED)},
        "text": {"type": "string", "description": asked("The part's text.", "any text", _REQUIRED)},
    },
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
        description=asked(
            "Who speaks.",
            "`system`, `user`, `assistant`, `tool`, or what else the model's chat template knows",
            _REQUIRED,
        ),
    )
    content: Content = Field(
        description=asked(
            "What is said.",
            "a text, or a list of text parts, which are joined by line ends; null too with tool_calls",
            _REQUIRED,
        )
    )
    name: str | None = Field(
        default=None, description=asked("Given to the chat template.", "any text", "none")
    )
    tool_call_id: str | None = Field(
        default=None, description=asked("Given to the chat template.", "any text", "none")
    )

    tool_calls: list[ToolCall] | None = Field(
        default=None,
        description=asked("Calls that the assistant made.", "a list", "none", "calls"),
    )
    reasoning_content: str | None = Field(
        default=None,
        description=asked("What the assistant thought; given to the chat template.", "any text", "none"),
    )
    reasoning: str | None = Field(
        default=None, description=asked("The same under its other name.", "any text", "none")
    )

    def for_template(self) -> dict[str, object]:
        """The fields that were given, under the names and in the form that templates read."""
        given: dict[str, object] = {
            name: value
            for name, value in self
            if value is not None and name not in ("tool_calls", "reasoning", "reasoning_content")
        }
        reasoning = self.reasoning_content or self.reasoning
        if reasoning:
            given["reasoning_content"] = reasoning
        if self.tool_calls:
            given["tool_calls"] = [call.for_template() for call in self.tool_calls]
        return given


class ChatCompletionRequest(GenerationBody, ChatOptions, StructuredFields, ToolFields):
    """Body of `/v1/chat/completions`."""

    messages: list[ChatMessage] = Field(
        min_length=1,
        description=asked(
            "The chat so far, oldest message first.", "at least 1 message", _REQUIRED, "messages"
        ),
    )
    max_completion_tokens: int | None = Field(
        default=None,
        ge=0,
        description=asked(
            "OpenAI's newer name of max_tokens; both may be given if equal.",
            "[1, context length - prompt], or 0 to score a prompt",
            "what the context length leaves",
            "tokens",
        ),
    )
    include_reasoning: bool | None = Field(
        default=None,
        description=asked("Send the reasoning of a model that reasons before it answers.", SWITCH, "true"),
    )
    logprobs: bool | None = Field(
        default=None,
        description=asked(
            "Report the log probability of each token of the answer; natural, before temperature, penalties, "
            "bias, grammar and truncation.",
            SWITCH,
            "false",
        ),
    )
    top_logprobs: int | None = Field(
        default=None,
        ge=0,
        le=MAX_LOGPROBS,
        description=asked(
            "With logprobs: report also those of so many likeliest tokens in each token's place.",
            f"[0, {MAX_LOGPROBS}]",
            "0",
            "tokens",
        ),
    )

    @model_validator(mode="after")
    def _agree(self) -> Self:
        both = (self.max_tokens, self.max_completion_tokens)
        if None not in both and both[0] != both[1]:
            raise PydanticCustomError(
                "max_tokens", "max_tokens and max_completion_tokens are given and differ"
            )
        if self.top_logprobs and not self.logprobs:
            raise PydanticCustomError("top_logprobs", "top_logprobs needs logprobs to be true")
        return self

    def sampling(self) -> SamplingOptions:
        """The sampling options under the names that both doors share."""
        limit = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return super().sampling().model_copy(update={"max_tokens": limit, "logprobs": logprobs})

    def prompts(self) -> tuple[Prompt, ...]:
        """The chat as the one prompt."""
        names = ChatOptions.model_fields
        options = ChatOptions.model_construct(**{name: getattr(self, name) for name in names})
        calls = self.asked_calls()
        tools = None if calls is None else calls.for_template()
        messages = tuple(message.for_template() for message in self.messages)
        return (ChatPrompt(messages, options=options, tools=tools),)

    def answers(self) -> AskedOfAnswers:
        """What is asked of the answers. Raises InvalidRequestError."""
        continued = self.messages[-1].content if self.continue_final_message else ""
        return AskedOfAnswers(
            answer=self.asked_answer(),
            calls=self.asked_calls(),
            chat=True,
            continued=continued,
            shows_reasoning=self.include_reasoning is not False,
        )

    @classmethod
    def from_json(cls, values: Mapping[str, object]) -> Self:
        """Validates a parsed body. Raises ValidationError and InvalidRequestError."""
        kept = drop_common(values, unbuilt.CHAT)
        if "messages" in kept:
            kept["messages"] = without_neutral(kept["messages"])
        return cls.model_validate(kept)


def without_neutral(messages: object) -> object:
    """Messages without what changes nothing. Raises InvalidRequestError for what is not supported."""
    if not isinstance(messages, list):
        return messages
    return [
        _with_content(unbuilt.drop_neutral(message, unbuilt.MESSAGE, f"messages[{position}]."))
        if isinstance(message, dict)
        else message
        for position, message in enumerate(messages)
    ]


def _with_content(message: dict[str, object]) -> dict[str, object]:
    """An assistant that only calls says nothing."""
    if message.get("tool_calls") and message.get("content") is None:
        return {**message, "content": ""}
    return message
