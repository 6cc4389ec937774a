"""One choice's tokens to its text: detokenizing, end tokens and stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from router.generation import ResolvedSampling
from router.text.detokenizer import Detokenizer
from router.text.stop_strings import StopStrings
from router.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Piece:
    """What some tokens added.

    Attributes:
        text: safe to show now.
        num_tokens: how many of the tokens belong to the answer; fewer than given only where stopped.
        stopped: a stop string was met; the answer is complete.
    """

    text: str
    num_tokens: int
    stopped: bool


class AnswerText:
    """The growing text of one choice.

    The token that ends an answer (EOS or a stop token id) counts but has no text. Stop strings are looked
    for in the text of the tokens after the first `min_tokens`.

    Attributes:
        num_tokens: tokens of the answer so far.
    """

    def __init__(self, tokenizer: Tokenizer, sampling: ResolvedSampling, stops: Sequence[str]) -> None:
        self._detokenizer = Detokenizer(tokenizer.token_bytes)
        self._stops = StopStrings(stops)
        self._min_tokens = sampling.min_tokens
        eos = frozenset() if sampling.ignore_eos else tokenizer.eos_token_ids
        self._end_ids = eos.union(sampling.stop_token_ids)
        self.num_tokens = 0

    def add(self, token_ids: Sequence[int]) -> Piece:
        """Takes the next tokens. Must not be called again once stopped."""
        text = ""
        for count, token_id in enumerate(token_ids, start=1):
            self.num_tokens += 1
            heeded = self.num_tokens > self._min_tokens
            if heeded and token_id in self._end_ids:
                continue
            new = self._detokenizer.add(token_id)
            if not heeded:
                text += new
                continue
            check = self._stops.add(new)
            text += check.text
            if check.stopped:
                return Piece(text, count, stopped=True)
        return Piece(text, len(token_ids), stopped=False)

    def finish(self) -> str:
        """The text still held back, once no token follows."""
        check = self._stops.add(self._detokenizer.finish())
        return check.text if check.stopped else check.text + self._stops.finish()
