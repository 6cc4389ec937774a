"""What a client may ask of sampling: names, ranges and defaults, once for both doors."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from router.described import SWITCH, asked

MAX_CHOICES = 16
MAX_STOPS = 16
# Longer ones make tables and token sequences that cost the event loop more than any client needs.
MAX_STOP_LENGTH = 1024
MAX_STOP_TOKENS = 256
MAX_LOGPROBS = 20
MAX_BIASES = 1024
MAX_BAD_WORDS = 256
MAX_BAD_WORD_LENGTH = 256
MAX_ALLOWED_TOKENS = 1 << 16


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


_STOP_TEXT = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_LENGTH}
Stop = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]],
    Field(max_length=MAX_STOPS),
    BeforeValidator(_as_list),
    WithJsonSchema(
        {
            "anyOf": [
                _STOP_TEXT,
                {"type": "array", "items": _STOP_TEXT, "maxItems": MAX_STOPS},
            ]
        }
    ),
]


class CommonSampling(BaseModel):
    """How tokens are chosen and when an answer ends: what all endpoints share. Null means not given."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    temperature: float | None = Field(
        default=None,
        ge=0,
        le=2,
        allow_inf_nan=False,
        description=asked("Divides the logits before tokens are drawn; 0 is greedy.", "[0, 2]", "1"),
    )
    top_p: float | None = Field(
        default=None,
        gt=0,
        le=1,
        allow_inf_nan=False,
        description=asked(
            "Draw from the smallest set of likeliest tokens whose probability reaches this; 1 is off.",
            "(0, 1]",
            "1",
        ),
    )
    top_k: int | None = Field(
        default=None,
        ge=-1,
        lt=2**31,
        description=asked(
            "Draw from the so many likeliest tokens; 0 and -1 are off.", "[-1, 2147483647]", "0", "tokens"
        ),
    )
    min_p: float | None = Field(
        default=None,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description=asked(
            "Draw from the tokens that are at least so many times as likely as the likeliest; 0 is off.",
            "[0, 1]",
            "0",
        ),
    )
    typical_p: float | None = Field(
        default=None,
        gt=0,
        le=1,
        allow_inf_nan=False,
        description=asked(
            "Draw from the tokens whose information is closest to the distribution's entropy, as many as "
            "reach this probability together; 1 is off.",
            "(0, 1]",
            "1",
        ),
    )
    presence_penalty: float | None = Field(
        default=None,
        ge=-2,
        le=2,
        allow_inf_nan=False,
        description=asked("Taken off the logit of each token that the answer has already.", "[-2, 2]", "0"),
    )
    frequency_penalty: float | None = Field(
        default=None,
        ge=-2,
        le=2,
        allow_inf_nan=False,
        description=asked(
            "Taken off a token's logit once for each time that the answer has it already.", "[-2, 2]", "0"
        ),
    )
    repetition_penalty: float | None = Field(
        default=None,
        gt=0,
        le=100,
        allow_inf_nan=False,
        description=asked(
            "Divides positive and multiplies negative logits of tokens in the prompt or the answer; 1 is "
            "off.",
            "(0, 100]",
            "1",
        ),
    )
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]] | None = Field(
        default=None,
        max_length=MAX_BIASES,
        description=asked(
            "Token ids, in JSON as strings, with what is added to their logits.",
            f"[-100, 100] for up to {MAX_BIASES} token ids of the vocabulary",
            "none",
            "logits",
        ),
    )
    bad_words: list[Annotated[str, Field(min_length=1, max_length=MAX_BAD_WORD_LENGTH)]] | None = Field(
        default=None,
        max_length=MAX_BAD_WORDS,
        description=asked(
            "Texts whose token sequences, with and without a space before them, the answer never contains.",
            f"up to {MAX_BAD_WORDS} texts of 1 to {MAX_BAD_WORD_LENGTH} characters",
            "none",
        ),
    )
    allowed_token_ids: list[int] | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_ALLOWED_TOKENS,
        description=asked(
            "The only token ids that may be drawn.",
            f"1 to {MAX_ALLOWED_TOKENS} token ids of the vocabulary",
            "all",
        ),
    )
    seed: int | None = Field(
        default=None,
        ge=-(2**63),
        lt=2**64,
        description=asked(
            "The same seed gives the same answer; a negative one stands for itself plus 2^64.",
            "[-2^63, 2^64 - 1]",
            "drawn anew for each request",
        ),
    )
    n: int | None = Field(
        default=None,
        ge=1,
        le=MAX_CHOICES,
        description=asked("Answers to each prompt.", f"[1, {MAX_CHOICES}]", "1", "answers"),
    )
    max_tokens: int | None = Field(
        default=None,
        ge=0,
        description=asked(
            "Most tokens to generate. 0 only scores the prompt, and needs its log probabilities to be "
            "asked for.",
            "[1, context length - prompt], or 0 to score a prompt",
            "what the context length leaves",
            "tokens",
        ),
    )
    min_tokens: int | None = Field(
        default=None,
        ge=0,
        description=asked(
            "The model's end token, stop tokens and stop strings are not heeded within so many tokens.",
            "[0, max_tokens]",
            "0",
            "tokens",
        ),
    )
    stop: Stop | None = Field(
        default=None,
        description=asked(
            "Texts that end the answer; not part of it.",
            f"up to {MAX_STOPS} texts of 1 to {MAX_STOP_LENGTH} characters",
            "none",
        ),
    )
    stop_token_ids: list[int] | None = Field(
        default=None,
        max_length=MAX_STOP_TOKENS,
        description=asked(
            "Token ids that end the answer; their text is not part of it.",
            f"up to {MAX_STOP_TOKENS} token ids of the vocabulary",
            "none",
        ),
    )
    include_stop_str_in_output: bool | None = Field(
        default=None,
        description=asked(
            "The stop string, or the text of the stop token, that ended the answer is part of it.",
            SWITCH,
            "false",
        ),
    )
    ignore_eos: bool | None = Field(
        default=None, description=asked("Go on at the model's end token.", SWITCH, "false")
    )
    skip_special_tokens: bool | None = Field(
        default=None,
        description=asked("Special tokens of the answer have no text.", SWITCH, "true"),
    )
    spaces_between_special_tokens: bool | None = Field(
        default=None,
        description=asked(
            "Put a space between special tokens where the tokenizer does. Those that this server can read "
            "never do, so that both values give the same text.",
            SWITCH,
            "true",
        ),
    )
    prompt_logprobs: int | None = Field(
        default=None,
        ge=0,
        le=MAX_LOGPROBS,
        description=asked(
            "Report the log probability of each token of the prompt but the first, and those of so many "
            "likeliest tokens in its place.",
            f"[0, {MAX_LOGPROBS}]",
            "none are reported",
            "tokens",
        ),
    )


class SamplingOptions(CommonSampling):
    """All that may be asked: what plain completions and the gRPC door take."""

    logprobs: int | None = Field(
        default=None,
        ge=0,
        le=MAX_LOGPROBS,
        description=asked(
            "Report the log probability of each token of the answer, and those of so many likeliest "
            "tokens in "
            "its place; natural, before temperature, penalties, bias, grammar and truncation.",
            f"[0, {MAX_LOGPROBS}]",
            "none are reported",
            "tokens",
        ),
    )
    best_of: int | None = Field(
        default=None,
        ge=1,
        le=MAX_CHOICES,
        description=asked(
            "Generate so many answers to each prompt and return the n with the highest mean log probability "
            "of a token, best first. All of them count as completion tokens.",
            f"[n, {MAX_CHOICES}]",
            "n",
            "answers",
        ),
    )
    echo: bool | None = Field(
        default=None,
        description=asked("The answer's text begins with the prompt's.", SWITCH, "false"),
    )
