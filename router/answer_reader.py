"""One choice's text to what a client reads: reasoning, content and calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from router.answer_text import AnswerText, Piece, ShownToken
from router.generation import TokenLogprobs
from router.reasoning.think import ThinkSplitter
from router.structured.wanted import Reasoning
from router.tools.parsers.base import CallArguments, CallBegin, CallForm, CallParser, CallPiece, ContentPiece


@dataclass(frozen=True, slots=True)
class Reading:
    """How the answers of one request are read.

    Attributes:
        reasoning: what comes before the content.
        shows_reasoning: the client wants to see it.
        keep_space: white space after it belongs to the content.
        form: how calls are written; None where none are looked for.
        functions: names of those that there are.
        single: an answer ends with its first call.
    """

    reasoning: Reasoning = "no"
    shows_reasoning: bool = True
    keep_space: bool = False
    form: CallForm | None = None
    functions: frozenset[str] = frozenset()
    single: bool = False


@dataclass(frozen=True, slots=True)
class ReadPiece:
    """What some tokens added; the fields are those of `Piece`, with the text parted.

    Attributes:
        text: new content.
        reasoning: new reasoning.
        calls: new calls and new text of their arguments, in order.
    """

    text: str = ""
    reasoning: str = ""
    calls: tuple[CallBegin | CallArguments, ...] = ()
    shown: tuple[ShownToken, ...] = ()
    num_tokens: int = 0
    stopped: bool = False


class AnswerReader:
    """The growing answer of one choice.

    Attributes:
        reasoning_tokens: tokens up to the end of the reasoning.
    """

    def __init__(self, answer: AnswerText, reading: Reading) -> None:
        self._answer = answer
        self._reading = reading
        self._splitter = (
            None
            if reading.reasoning == "no"
            else ThinkSplitter(opened=reading.reasoning == "open", keep_space=reading.keep_space)
        )
        self._parser = (
            None
            if reading.form is None
            else CallParser(reading.form, reading.functions, single=reading.single)
        )
        self.reasoning_tokens = 0

    @property
    def num_tokens(self) -> int:
        """Tokens of the answer so far."""
        return self._answer.num_tokens

    def add(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs] = ()) -> ReadPiece:
        """Takes the next tokens, with one entry of logprobs for each or none. Never called once stopped."""
        if self._splitter is None and self._parser is None:
            return _plain(self._answer.add(token_ids, logprobs))
        total = ReadPiece()
        # One by one: where the reasoning ends is counted in tokens.
        for index, token_id in enumerate(token_ids):
            piece = self._read(self._answer.add((token_id,), logprobs[index : index + 1]))
            total = _joined(total, piece)
            if piece.stopped:
                # A stop string ended it: no more text will say what was held back.
                return replace(_joined(total, self._held()), stopped=True)
        return total

    def finish(self) -> ReadPiece:
        """What was still held back, once no token follows."""
        piece = self._answer.finish()
        if self._splitter is None and self._parser is None:
            return _plain(piece)
        return replace(_joined(self._read(piece), self._held()), stopped=False)

    def _held(self) -> ReadPiece:
        """What splitter and parser wait with."""
        total = ReadPiece()
        if self._splitter is not None:
            split = self._splitter.finish()
            total = replace(self._content(split.content), reasoning=self._shown_reasoning(split.reasoning))
        if self._parser is not None:
            total = _joined(total, _parted(self._parser.finish()))
        return total

    def reason(self, reason: Literal["stop", "length"]) -> Literal["stop", "length", "tool_calls"]:
        """Why the answer ended, for its client: calls are why it stopped where there are any."""
        if reason == "stop" and self._parser is not None and self._parser.calls:
            return "tool_calls"
        return reason

    def _read(self, piece: Piece) -> ReadPiece:
        text, reasoning = piece.text, ""
        if self._splitter is not None:
            within = self._splitter.reasoning
            split = self._splitter.add(text)
            if within or self._splitter.reasoning or split.reasoning:
                self.reasoning_tokens = self._answer.num_tokens
            text, reasoning = split.content, split.reasoning
        read = self._content(text)
        return replace(
            read,
            reasoning=self._shown_reasoning(reasoning),
            shown=piece.shown,
            num_tokens=piece.num_tokens,
            stopped=piece.stopped or read.stopped,
        )

    def _content(self, text: str) -> ReadPiece:
        if self._parser is None:
            return ReadPiece(text)
        parted = _parted(self._parser.add(text))
        return replace(parted, stopped=self._parser.done)

    def _shown_reasoning(self, reasoning: str) -> str:
        return reasoning if self._reading.shows_reasoning else ""


def _plain(piece: Piece) -> ReadPiece:
    return ReadPiece(piece.text, shown=piece.shown, num_tokens=piece.num_tokens, stopped=piece.stopped)


def _parted(pieces: Sequence[CallPiece]) -> ReadPiece:
    return ReadPiece(
        "".join(piece.text for piece in pieces if isinstance(piece, ContentPiece)),
        calls=tuple(piece for piece in pieces if not isinstance(piece, ContentPiece)),
    )


def _joined(one: ReadPiece, other: ReadPiece) -> ReadPiece:
    return ReadPiece(
        one.text + other.text,
        one.reasoning + other.reasoning,
        one.calls + other.calls,
        one.shown + other.shown,
        one.num_tokens + other.num_tokens,
        one.stopped or other.stopped,
    )
