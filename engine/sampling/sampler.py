"""From logits to tokens: the one path for plain, speculative, local and disaggregated decoding."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.api import SamplingParams


def sample(
    logits: torch.Tensor,
    params: Sequence[SamplingParams],
    positions: Sequence[int],
    eos_token_ids: frozenset[int],
) -> torch.Tensor:
    """Draws one token for each row.

    Args:
        logits: [R, vocab] fp32.
        params: one for each row.
        positions: index of the drawn token in its answer, resumed tokens counted: the draw's counter.
        eos_token_ids: forbidden in a row, with its stop tokens, while position < min_tokens.

    Returns:
        [R] int64.
    """
    raise NotImplementedError
