"""Bodies of `/tokenize` and `/detokenize`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from router.described import SWITCH, asked
from router.http import unbuilt
from router.http.schema.chat import ChatMessage, without_neutral
from router.http.schema.common import MODEL
from router.prepare import MAX_DETOKENIZED
from router.prompt_options import ChatOptions
from router.prompts import ChatPrompt, Prompt, TextPrompt
from router.tools.asked import MAX_TOOLS, Tool, ToolFields

_THE_ONE = MODEL.replace("none, it must be given", "the one model that is served")


class TokenizeRequest(ChatOptions):
    """Body of `/tokenize`: either a prompt or messages."""

    model: str | None = Field(default=None, description=_THE_ONE)
    prompt: str | None = Field(
        default=None, description=asked("A plain text.", "at least 1 character", "none; or messages")
    )
    messages: Annotated[list[ChatMessage], Field(min_length=1)] | None = Field(
        default=None,
        description=asked(
            "A chat, as `/v1/chat/completions` takes it.",
            "at least 1 message",
            "none; or a prompt",
            "messages",
        ),
    )
    tools: list[Tool] | None = Field(
        default=None,
        max_length=MAX_TOOLS,
        description=asked("Functions that the chat offers.", f"up to {MAX_TOOLS} tools", "none", "tools"),
    )
    return_token_strs: bool | None = Field(
        default=None,
        description=asked("Add `token_strs`: each token as the vocabulary spells it.", SWITCH, "false"),
    )

    @model_validator(mode="after")
    def _one_input(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise PydanticCustomError("prompt", "exactly one of prompt and messages is needed")
        return self

    def as_prompt(self) -> Prompt:
        """What is to be tokenized."""
        if self.messages is None:
            return TextPrompt(self.prompt or "", add_special_tokens=self.add_special_tokens is not False)
        names = ChatOptions.model_fields
        options = ChatOptions.model_construct(**{name: getattr(self, name) for name in names})
        messages = tuple(message.for_template() for message in self.messages)
        calls = ToolFields(tools=self.tools).asked_calls()
        return ChatPrompt(messages, options=options, tools=None if calls is None else calls.for_template())

    @classmethod
    def from_json(cls, values: Mapping[str, object]) -> Self:
        """Validates a parsed body. Raises ValidationError and InvalidRequestError."""
        kept = unbuilt.drop_neutral(values, unbuilt.TOKENIZE)
        if "messages" in kept:
            kept["messages"] = without_neutral(kept["messages"])
        return cls.model_validate(kept)


class DetokenizeRequest(BaseModel):
    """Body of `/detokenize`."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    model: str | None = Field(default=None, description=_THE_ONE)
    tokens: list[int] = Field(
        max_length=MAX_DETOKENIZED,
        description=asked(
            "Token ids.",
            f"up to {MAX_DETOKENIZED} token ids of the vocabulary",
            "none, they must be given",
            "tokens",
        ),
    )
    skip_special_tokens: bool | None = Field(
        default=None, description=asked("Special tokens have no text.", SWITCH, "false")
    )

    @classmethod
    def from_json(cls, values: Mapping[str, object]) -> Self:
        """Validates a parsed body. Raises ValidationError."""
        return cls.model_validate(values)
