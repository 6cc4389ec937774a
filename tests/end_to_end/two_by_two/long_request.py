"""The request that faults hit, and the answer that it must get all the same."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvrelay import Generation
from tests.support.aggregated import aggregated_tokens
from tests.support.requests import prompt, work_request
from tests.support.tiny_tokenizer import byte_tokenizer

PROMPT_TOKENS = 3000
MAX_TOKENS = 120
_salts = (f"salt-{number}" for number in itertools.count())


@dataclass(frozen=True, slots=True)
class LongRequest:
    """A sampled request of 3,000 tokens.

    Attributes:
        prompt: token ids.
        answer: what one engine by itself gives.
    """

    prompt: tuple[int, ...]
    answer: tuple[int, ...]

    @classmethod
    def computed(cls, model: Path) -> LongRequest:
        """Asks an engine of this process, with which no cluster has to do."""
        tokens = prompt(PROMPT_TOKENS)
        request = work_request("long", tokens, max_tokens=MAX_TOKENS, temperature=0.8, seed=7)
        return cls(tuple(tokens), tuple(aggregated_tokens(model, request, max_model_len=3200)))

    def arguments(self) -> dict[str, Any]:
        """For a client. Each call has a salt of its own: nothing of it is in any cache."""
        return {
            "token_ids": self.prompt,
            "max_tokens": MAX_TOKENS,
            "temperature": 0.8,
            "seed": 7,
            "ignore_eos": True,
            "cache_salt": next(_salts),
        }

    def check(self, result: Generation) -> None:
        """The client got exactly the answer, and is billed for exactly this."""
        assert result.token_ids == self.answer
        assert result.text == byte_tokenizer().decode(list(self.answer), skip_special_tokens=True)
        assert result.usage.prompt_tokens == len(self.prompt)
        assert result.usage.completion_tokens == len(self.answer)
        # With a salt of its own everything had to be computed for it.
        assert result.usage.cached_tokens == 0
