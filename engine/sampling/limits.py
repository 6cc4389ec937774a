"""Which sampling parameters the engine takes."""

from __future__ import annotations

import math

from engine.api import SamplingParams

MAX_LOGPROBS = 20

# Name, least value, greatest value; whether the least itself is allowed.
_RANGES = (
    ("temperature", 0.0, math.inf, True),
    ("top_p", 0.0, 1.0, False),
    ("min_p", 0.0, 1.0, True),
    ("typical_p", 0.0, 1.0, False),
    ("presence_penalty", -2.0, 2.0, True),
    ("frequency_penalty", -2.0, 2.0, True),
    ("repetition_penalty", 0.0, math.inf, False),
)


def check(params: SamplingParams, vocab_size: int) -> None:
    """Raises ValueError, naming the parameter and what it may be."""
    for name, least, greatest, closed in _RANGES:
        value = getattr(params, name)
        above = value >= least if closed else value > least
        if not (above and value <= greatest and math.isfinite(value)):
            bracket = "[" if closed else "("
            raise ValueError(f"{name} is {value}, but must lie in {bracket}{least:g}, {greatest:g}]")
    for name in ("logprobs", "prompt_logprobs"):
        asked = getattr(params, name)
        if asked is not None and not 0 <= asked <= MAX_LOGPROBS:
            raise ValueError(f"{name} is {asked}, but must be from 0 to {MAX_LOGPROBS}")
    for token_id, value in params.logit_bias:
        if not math.isfinite(value):
            raise ValueError(f"logit_bias of token {token_id} is {value}, but must be a finite number")
    if not all(params.bad_words):
        raise ValueError("bad_words has a sequence without tokens")
    biased = [token_id for token_id, _ in params.logit_bias]
    if len(set(biased)) != len(biased):
        raise ValueError("logit_bias names a token twice")
    bad = [token_id for words in params.bad_words for token_id in words]
    for name, token_ids in (
        ("logit_bias", biased),
        ("bad_words", bad),
        ("allowed_token_ids", params.allowed_token_ids),
    ):
        wrong = [token_id for token_id in token_ids if not 0 <= token_id < vocab_size]
        if wrong:
            raise ValueError(f"{name} has token {wrong[0]}, but ids go from 0 to {vocab_size - 1}")
