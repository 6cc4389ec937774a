"""What a client may ask of sampling: names, ranges and defaults, once for both doors."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

MAX_CHOICES = 16
MAX_STOPS = 16
MAX_STOP_TOKENS = 256
DEFAULT_TEMPERATURE = 1.0
DEFAULT_TOP_P = 1.0


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


Stop = Annotated[
    list[Annotated[str, Field(min_length=1)]],
    Field(max_length=MAX_STOPS),
    BeforeValidator(_as_list),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}, "maxItems": MAX_STOPS},
            ]
        }
    ),
]


class SamplingOptions(BaseModel):
    """How tokens are chosen and when an answer ends. Null means not given."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    temperature: float | None = Field(
        default=None, ge=0, le=2, allow_inf_nan=False, description="0 is greedy. Default 1."
    )
    top_p: float | None = Field(
        default=None,
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="Keep the smallest set of tokens whose probability reaches this. Default 1 (off).",
    )
    top_k: int | None = Field(
        default=None, ge=-1, lt=2**31, description="Keep the so many likeliest tokens. 0 and -1 are off."
    )
    seed: int | None = Field(
        default=None,
        ge=-(2**63),
        lt=2**64,
        description="The same seed gives the same answer. Default: drawn anew for each request.",
    )
    max_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Most tokens to generate. Default: what the context length leaves.",
    )
    min_tokens: int | None = Field(
        default=None,
        ge=0,
        description="EOS, stop tokens and stop strings are not heeded within so many tokens. Default 0.",
    )
    stop: Stop | None = Field(
        default=None, description=f"Up to {MAX_STOPS} strings that end the answer; not part of it."
    )
    stop_token_ids: list[int] | None = Field(
        default=None,
        max_length=MAX_STOP_TOKENS,
        description="Token ids that end the answer; their text is not part of it.",
    )
    ignore_eos: bool | None = Field(
        default=None, description="Go on at the model's end token. Default false."
    )
    n: int | None = Field(
        default=None, ge=1, le=MAX_CHOICES, description=f"Choices for each prompt, 1 to {MAX_CHOICES}."
    )
