"""One choice's tokens to its text: detokenizing, end tokens, stop strings, and when tokens are shown."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from router.generation import ResolvedSampling, TokenLogprobs
from router.text.detokenizer import Detokenizer
from router.text.stop_strings import StopStrings
from router.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextRules:
    """How an answer's tokens become its text.

    Attributes:
        stops: strings that end the answer.
        include_stop: what ended the answer, a stop string or an end token, is part of its text.
        skip_special_tokens: special tokens have no text.
        markers: but these do.
    """

    stops: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True
    markers: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ShownToken:
    """A token whose text is shown, or which has none, with what is reported of it.

    Attributes:
        token_id: the token.
        offset: where its text begins in the answer's, characters.
        logprobs: its position's log probabilities.
    """

    token_id: int
    offset: int
    logprobs: TokenLogprobs


@dataclass(frozen=True, slots=True)
class Piece:
    """What some tokens added.

    Attributes:
        text: safe to show now.
        shown: the tokens that go with the text shown so far and were not given before; only where log
            probabilities are known.
        num_tokens: how many of the tokens belong to the answer; fewer than given only where stopped.
        stopped: a stop string was met; the answer is complete.
    """

    text: str
    shown: tuple[ShownToken, ...]
    num_tokens: int
    stopped: bool


class AnswerText:
    """The growing text of one choice.

    The token that ends an answer (EOS or a stop token id) counts but has no text unless that is asked for.
    Stop strings are looked for in the text of the tokens after the first `min_tokens`. A token is shown with
    the first character of its text; those whose text lies in or behind a hidden stop string never are.

    Attributes:
        num_tokens: tokens of the answer so far.
    """

    def __init__(self, tokenizer: Tokenizer, sampling: ResolvedSampling, rules: TextRules) -> None:
        skip = rules.skip_special_tokens
        self._detokenizer = Detokenizer(
            tokenizer.bytes_showing(rules.markers) if skip else tokenizer.all_token_bytes
        )
        self._stops = StopStrings(rules.stops, include=rules.include_stop)
        self._show_end = rules.include_stop
        self._min_tokens = sampling.min_tokens
        eos = frozenset() if sampling.ignore_eos else tokenizer.eos_token_ids
        self._end_ids = eos.union(sampling.stop_token_ids)
        self.num_tokens = 0
        # Characters detokenized, and of them shown.
        self._read = 0
        self._shown = 0
        self._pending: deque[ShownToken] = deque()

    def add(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs] = ()) -> Piece:
        """Takes the next tokens, with one entry of logprobs for each or none. Never called once stopped."""
        text = ""
        for count, token_id in enumerate(token_ids, start=1):
            self.num_tokens += 1
            if logprobs:
                self._pending.append(ShownToken(token_id, self._read, logprobs[count - 1]))
            heeded = self.num_tokens > self._min_tokens
            if heeded and token_id in self._end_ids and not self._show_end:
                continue
            new = self._detokenizer.add(token_id)
            self._read += len(new)
            if not heeded:
                text += new
                continue
            check = self._stops.add(new)
            text += check.text
            if check.stopped:
                return Piece(text, self._release(text, last=False), count, stopped=True)
        return Piece(text, self._release(text, last=False), len(token_ids), stopped=False)

    def finish(self) -> Piece:
        """What was still held back, once no token follows."""
        rest = self._detokenizer.finish()
        check = self._stops.add(rest)
        text = check.text if check.stopped else check.text + self._stops.finish()
        return Piece(text, self._release(text, last=not check.stopped), 0, stopped=check.stopped)

    def _release(self, text: str, *, last: bool) -> tuple[ShownToken, ...]:
        self._shown += len(text)
        released: list[ShownToken] = []
        while self._pending and (last or self._pending[0].offset < self._shown):
            released.append(self._pending.popleft())
        return tuple(released)
