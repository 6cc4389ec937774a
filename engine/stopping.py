"""When a sequence ends."""

from __future__ import annotations

from engine.api import FinishReason, SamplingParams


def finish_reason(
    params: SamplingParams,
    token_id: int,
    index: int,
    num_tokens: int,
    eos_token_ids: frozenset[int],
    max_model_len: int,
    grammar_complete: bool = False,
) -> FinishReason | None:
    """Whether a token is its sequence's last.

    Args:
        params: the sequence's.
        token_id: the token just drawn, or carried over from a prefill worker.
        index: its place in the answer, resumed tokens counted. Before `min_tokens` no token stops.
        num_tokens: prompt and answer so far, this token included.
        eos_token_ids: the model's.
        max_model_len: most tokens of prompt and answer together.
        grammar_complete: the answer matches its grammar and nothing can be added: it ends even before
            `min_tokens`, and whatever `ignore_eos` says.
    """
    if grammar_complete:
        return FinishReason.STOP
    if index >= params.min_tokens and (
        token_id in params.stop_token_ids or (token_id in eos_token_ids and not params.ignore_eos)
    ):
        return FinishReason.STOP
    if index + 1 >= params.max_tokens or num_tokens >= max_model_len:
        return FinishReason.LENGTH
    return None
