"""What chat and plain completions share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator
from pydantic_core import PydanticCustomError

from router.described import SWITCH, asked
from router.http import unbuilt
from router.prepare import MAX_PRIORITY, MAX_SALT_LENGTH, MIN_PRIORITY
from router.sampling_options import CommonSampling, SamplingOptions
from router.speculation_options import SPECULATION, SpeculationOptions
from router.structured.asked import STRUCTURED_OPTIONS

# A day: longer than any answer, short enough for every clock.
MAX_TIMEOUT_S = 86_400.0
_STREAM_OPTIONS = frozenset(("include_usage", "continuous_usage_stats"))
_NO_EFFECT = "Accepted; has no effect on the answer."
_ANY_TEXT = "any text"
MODEL = asked("The served model's name.", "what `/v1/models` lists", "none, it must be given")


class StreamOptions(BaseModel):
    """Options of a streaming answer. Unknown ones are accepted while null or false."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    include_usage: bool | None = Field(
        default=None,
        description=asked(
            "A last chunk without choices carries the usage; the others say null.", SWITCH, "false"
        ),
    )
    continuous_usage_stats: bool | None = Field(
        default=None,
        description=asked(
            "With include_usage: every chunk carries the usage so far, without its details.", SWITCH, "false"
        ),
    )


class GenerationBody(CommonSampling):
    """What chat and plain completions share."""

    model: str = Field(min_length=1, description=MODEL)
    stream: bool | None = Field(
        default=None,
        description=asked("Send server-sent events as text comes, then `data: [DONE]`.", SWITCH, "false"),
    )
    stream_options: StreamOptions | None = Field(
        default=None,
        description=asked("How a streaming answer is sent; needs stream.", "an object", "none of them"),
    )
    timeout: float | None = Field(
        default=None,
        gt=0,
        le=MAX_TIMEOUT_S,
        allow_inf_nan=False,
        description=asked(
            "After so long the request ends with an error, also while it waits. The header "
            "`x-request-timeout` does the same; the shorter one holds.",
            f"(0, {MAX_TIMEOUT_S:g}]",
            "no limit",
            "seconds",
        ),
    )
    priority: int | None = Field(
        default=None,
        ge=MIN_PRIORITY,
        le=MAX_PRIORITY,
        description=asked(
            "Requests with a lower one run first and are preempted last; equals in order of arrival.",
            f"[{MIN_PRIORITY}, {MAX_PRIORITY}]",
            "0",
        ),
    )
    cache_salt: str | None = Field(
        default=None,
        max_length=MAX_SALT_LENGTH,
        description=asked(
            "Requests share cached prompt prefixes only under an equal salt.",
            f"up to {MAX_SALT_LENGTH} characters",
            "empty",
        ),
    )
    speculation: SpeculationOptions | None = Field(default=None, description=SPECULATION)
    return_token_ids: bool | None = Field(
        default=None,
        description=asked("The answer has `prompt_token_ids`, and each choice `token_ids`.", SWITCH, "false"),
    )
    return_tokens_as_token_ids: bool | None = Field(
        default=None,
        description=asked(
            "Log probabilities name tokens as `token_id:17` and not by their text.", SWITCH, "false"
        ),
    )
    user: str | None = Field(default=None, description=asked(_NO_EFFECT, _ANY_TEXT, "none"))
    safety_identifier: str | None = Field(default=None, description=asked(_NO_EFFECT, _ANY_TEXT, "none"))
    prompt_cache_key: str | None = Field(
        default=None,
        description=asked(f"{_NO_EFFECT} Prefixes are found by their content.", _ANY_TEXT, "none"),
    )
    metadata: dict[str, JsonValue] | None = Field(
        default=None, description=asked(_NO_EFFECT, "an object", "none")
    )

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError("stream_options", "stream_options needs stream to be true")
        return self

    def sampling(self) -> SamplingOptions:
        """The sampling options alone. They are validated already."""
        names = SamplingOptions.model_fields.keys() & type(self).model_fields.keys()
        return SamplingOptions.model_construct(**{name: getattr(self, name) for name in names})


def drop_common(values: Mapping[str, object], table: Mapping[str, unbuilt.Neutral]) -> dict[str, object]:
    """A parsed body without what changes nothing. Raises InvalidRequestError for what is not supported."""
    kept = unbuilt.drop_neutral(values, table)
    options = kept.get("stream_options")
    if isinstance(options, dict):
        kept["stream_options"] = unbuilt.drop_unset_options(options, _STREAM_OPTIONS, "stream_options.")
    outputs = kept.get("structured_outputs")
    if isinstance(outputs, dict):
        kept["structured_outputs"] = unbuilt.drop_unset_options(
            outputs, STRUCTURED_OPTIONS, "structured_outputs."
        )
    return kept
