"""What a client may ask of the way from its prompt to token ids, once for both doors."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator
from pydantic_core import PydanticCustomError

from router.described import SWITCH, asked

MAX_TEMPLATE_ARGUMENTS = 64


class PromptOptions(BaseModel):
    """How a prompt becomes token ids. Null means not given."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    add_special_tokens: bool | None = Field(
        default=None,
        description=asked(
            "Add what the tokenizer puts around every text, often a token that begins it. A chat's template "
            "writes such tokens itself.",
            SWITCH,
            "true for a plain prompt, false for a chat",
        ),
    )
    truncate_prompt_tokens: int | None = Field(
        default=None,
        ge=-1,
        description=asked(
            "Keep only so many tokens of the prompt, the last ones; -1 keeps as many as fit beside "
            "max_tokens.",
            "-1 or [1, context length - 1]",
            "all are kept",
            "tokens",
        ),
    )

    @model_validator(mode="after")
    def _truncated_to_something(self) -> Self:
        if self.truncate_prompt_tokens == 0:
            raise PydanticCustomError(
                "truncate_prompt_tokens", "truncate_prompt_tokens should be -1, or 1 or more"
            )
        return self


class ChatOptions(PromptOptions):
    """The same for a chat, which its model's template makes a prompt of."""

    add_generation_prompt: bool | None = Field(
        default=None,
        description=asked(
            "End the prompt with what begins the assistant's message.",
            SWITCH,
            "true, or false with continue_final_message",
        ),
    )
    continue_final_message: bool | None = Field(
        default=None,
        description=asked(
            "End the prompt with the last message's text, so that the answer goes on with it. Excludes "
            "add_generation_prompt.",
            SWITCH,
            "false",
        ),
    )
    chat_template_kwargs: dict[str, JsonValue] | None = Field(
        default=None,
        max_length=MAX_TEMPLATE_ARGUMENTS,
        description=asked(
            "Variables of the model's chat template, for example `enable_thinking`.",
            f"up to {MAX_TEMPLATE_ARGUMENTS} names with JSON values; not the names that the server sets "
            "itself",
            "none",
        ),
    )

    @model_validator(mode="after")
    def _one_end(self) -> Self:
        if self.add_generation_prompt and self.continue_final_message:
            raise PydanticCustomError(
                "continue_final_message", "continue_final_message excludes add_generation_prompt"
            )
        return self
