"""Suffix decoding: the likeliest continuations of the text's end, counted where it came before.

Oliaro et al., 2024, "SuffixDecoding: extreme speculative decoding for emerging AI applications". Counts are
of the sequence's own text and of its tenant's past answers. Every suffix that came before makes a tree of
at most as many drafts as it has tokens. The probability of a draft is that of its path, each token counted
among those that followed. The tree whose probabilities add up to most is proposed: it has most drafts
right, by that count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush, nlargest
from itertools import count

from engine.models.features import FeaturePoints
from engine.sequence import Sequence as EngineSequence
from engine.speculation.base import Drafter, Target, TargetPass
from engine.speculation.config import SpeculationConfig
from engine.speculation.past_outputs import PastOutputs, StoredAnswer
from engine.speculation.settings import check_tree, max_drafts, refuse_carried, refuse_model
from engine.speculation.suffixes import SuffixAutomaton, TextEnd
from engine.speculation.tree import DraftTree

NEEDS_MODEL = False

MAX_DEPTH = 24
"""Longest substrings that are counted: a suffix and what is drafted behind it."""

MIN_PROBABILITY = 0.1
"""Drafts whose path is less likely are not proposed."""

# Tokens of one sequence that are taken in at a time, some milliseconds' worth. It drafts when it is through.
_PORTION = 4096


@dataclass(slots=True)
class _State:
    """Of one sequence: its text, as far as it is taken in, and how much of its answer is in the store."""

    text: SuffixAutomaton
    num_stored: int
    end: TextEnd = field(default_factory=TextEnd)
    stored: StoredAnswer = field(default_factory=StoredAnswer)


@dataclass(slots=True)
class _Guess:
    """A tree in the making; `score` is the sum of its drafts' probabilities."""

    token_ids: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    score: float = 0.0


@dataclass(frozen=True, slots=True)
class _Shape:
    """Most drafts one behind the other, and most children of a node."""

    depth: int
    width: int


class _SuffixDecoding:
    """Implements `engine.speculation.base.Drafter`."""

    points: FeaturePoints | None = None
    num_layers = 0

    def __init__(self, shape: _Shape, most: int, store: PastOutputs) -> None:
        self.max_drafts = most
        self._shape = shape
        self._store = store

    def propose(
        self, sequences: Sequence[EngineSequence], counts: Sequence[int]
    ) -> Sequence[DraftTree | None]:
        """See `engine.speculation.base.Drafter`."""
        return [self._propose(*pair) for pair in zip(sequences, counts, strict=True)]

    def extend(self, found: TargetPass) -> None:
        """Takes the passes' texts in, and stores what they added to answers."""
        for extent in found.extents:
            sequence = extent.sequence
            # A context that is held for another worker is decoded there.
            if sequence.hold:
                continue
            state = self._take_in(sequence)
            answer = sequence.token_ids[sequence.num_prompt + state.num_stored :]
            if answer:
                self._store.append(sequence.request.cache_salt, state.stored, answer)
                state.num_stored += len(answer)

    def complete(self, sequence: EngineSequence) -> None:
        """Nothing: it keeps no KV in the blocks."""

    def carried(self, sequence: EngineSequence) -> bytes:
        """Nothing: the tokens tell it all."""
        return b""

    def adopt(self, sequence: EngineSequence, carried: bytes) -> None:
        """See `engine.speculation.base.Drafter`."""
        refuse_carried(carried)

    def _propose(self, sequence: EngineSequence, most: int) -> DraftTree | None:
        state = self._take_in(sequence)
        if state.text.num_tokens < len(sequence.token_ids):
            return None
        tail = sequence.token_ids[-MAX_DEPTH:]
        best = _Guess()
        for text in (state.text, *self._store.automata(sequence.request.cache_salt)):
            for guess in _guesses(text, tail, min(most, self.max_drafts), self._shape, best.score):
                if guess.score > best.score:
                    best = guess
        return DraftTree(tuple(best.token_ids), tuple(best.parents)) if best.token_ids else None

    def _take_in(self, sequence: EngineSequence) -> _State:
        state = sequence.draft_states.get(self)
        if not isinstance(state, _State):
            # What was answered before a preemption is in the store already.
            answered = sequence.next_index
            state = _State(SuffixAutomaton(MAX_DEPTH), answered if answered > 1 else 0)
            sequence.draft_states[self] = state
        taken = state.text.num_tokens
        state.text.append(state.end, sequence.token_ids[taken : taken + _PORTION])
        return state


def _guesses(
    text: SuffixAutomaton, tail: Sequence[int], most: int, shape: _Shape, to_beat: float
) -> Iterator[_Guess]:
    """What each suffix of a text's end makes, as far as it may score more than `to_beat` and those before."""
    for state, longest, shortest in text.suffixes(tail):
        drafts = min(most, longest)
        # No draft counts for more than 1, and shorter suffixes make fewer.
        if drafts <= to_beat:
            return
        depth = min(shape.depth, MAX_DEPTH - shortest)
        guess = _grow(text, state, drafts, depth, shape.width)
        to_beat = max(to_beat, guess.score)
        yield guess


def _grow(text: SuffixAutomaton, state: int, most: int, depth: int, width: int) -> _Guess:
    """The likeliest `most` drafts behind a state's substrings."""
    guess = _Guess()
    order = count()
    # What is left to choose from: likeliest first, then as found.
    front: list[tuple[float, int, int, int, int, int]] = []

    def reach(node: int, behind: int, probability: float, level: int) -> None:
        counts = {token: text.count(after) for token, after in text.followers(behind).items()}
        total = sum(counts.values())
        for token, occurrences in nlargest(width, counts.items(), key=lambda item: item[1]):
            likely = probability * occurrences / total
            if likely >= MIN_PROBABILITY:
                after = text.followers(behind)[token]
                heappush(front, (-likely, next(order), node, token, after, level))

    if depth > 0:
        reach(0, state, 1.0, 1)
    while front and len(guess.token_ids) < most:
        negative, _, parent, token, after, level = heappop(front)
        guess.token_ids.append(token)
        guess.parents.append(parent)
        guess.score -= negative
        if level < depth:
            reach(len(guess.token_ids), after, -negative, level + 1)
    return guess


def create(config: SpeculationConfig, target: Target) -> Drafter:
    """The drafter; ValueError for settings out of bounds."""
    refuse_model(config)
    check_tree(config)
    shape = _Shape(config.num_speculative_tokens, config.eagle_topk)
    return _SuffixDecoding(shape, max_drafts(config), PastOutputs(MAX_DEPTH))
