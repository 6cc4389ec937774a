"""What a request must keep to before the engine takes it."""

from __future__ import annotations

from collections.abc import Sequence

from engine.api import EngineRequest, RequestTooLargeError
from engine.config import EngineConfig
from engine.models.config import ModelConfig
from engine.sampling import limits
from engine.speculation.tree import MAX_NODES


def max_model_len(model: ModelConfig, config: EngineConfig, num_blocks: int) -> int:
    """Most tokens of prompt and answer together: as configured, or else what model and pool allow.

    Raises:
        ValueError: the configured length exceeds the model's or the pool.
    """
    own = model.max_position_embeddings
    held = num_blocks // len(model.layer_groups) * config.block_size
    if config.max_model_len > own:
        raise ValueError(f"max_model_len is {config.max_model_len}, but the model's limit is {own} tokens")
    if config.max_model_len > held:
        raise ValueError(f"max_model_len is {config.max_model_len}, but the KV pool holds {held} tokens")
    return config.max_model_len or min(own, held)


class RequestLimits:
    """Checks requests.

    Args:
        vocab_size: the model's.
        max_model_len: most tokens of prompt and answer together.
    """

    def __init__(self, vocab_size: int, max_model_len: int) -> None:
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len

    def check(self, request: EngineRequest) -> None:
        """Raises RequestTooLargeError, or ValueError saying what is wrong."""
        if not request.prompt_token_ids:
            raise ValueError("the prompt is empty")
        self.check_tokens(request.prompt_token_ids)
        self.check_tokens(request.resumed_token_ids)
        limits.check(request.sampling, self._vocab_size)
        asked = None if request.speculation is None else request.speculation.num_speculative_tokens
        if asked is not None and not 0 < asked < MAX_NODES:
            raise ValueError(
                f"speculation.num_speculative_tokens is {asked}, but must be from 1 to {MAX_NODES - 1}"
            )
        if len(request.resumed_token_ids) >= request.sampling.max_tokens:
            raise ValueError(
                f"nothing is left to generate: {len(request.resumed_token_ids)} tokens of at most "
                f"{request.sampling.max_tokens} are there"
            )
        if request.num_context_tokens >= self._max_model_len:
            raise RequestTooLargeError(
                f"{request.num_context_tokens} tokens leave no room for an answer: prompt and answer "
                f"together can have {self._max_model_len}; shorten the prompt, or serve with a larger "
                "max_model_len and the KV memory for it"
            )

    def check_tokens(self, token_ids: Sequence[int]) -> None:
        """Raises ValueError for an id that the vocabulary does not have."""
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < self._vocab_size:
            raise ValueError(f"token ids must be from 0 to {self._vocab_size - 1}")
