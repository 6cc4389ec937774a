"""Prompt lookup before a drafter with a model. Implements `engine.speculation.base.Drafter`.

Where a text repeats its prompt or itself, what followed before follows again more often than a head is right,
and looking it up costs nothing; elsewhere a head knows more. So for each proposal of a sequence the text is
asked first, and the model where nothing matches, or where matches of that length were right less often of
late than the model.

How often the first draft is right is learnt from what the sequences turn out to be: of matches at each
proposal, for they are looked up whoever drafts in the end; of the model where it drafted. Greedy answers and
drawn ones are told apart, for drawn ones leave what they repeat much sooner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.models.features import FeaturePoints
from engine.sequence import Sequence as EngineSequence
from engine.speculation.base import Drafter, TargetPass
from engine.speculation.ngrams import NgramIndex
from engine.speculation.tree import DraftTree

_FIRST_RATES = (0.2, 0.45, 0.6, 0.7, 0.8)
"""How often a match's first draft is right, before any was seen, by its length; longer ones as the last."""
_FIRST_MODEL_RATE = 0.5
_PRIOR_TESTS = 20.0
_DECAY = 0.998
_FURTHER = 1.25
"""Behind a first draft that is right those of a match are right more often than a model's, and cost less."""


@dataclass(slots=True)
class _Rate:
    """How often something was right; about the last 500 times count."""

    first: float
    tests: float = 0.0
    hits: float = 0.0

    @property
    def value(self) -> float:
        return (self.hits + _PRIOR_TESTS * self.first) / (self.tests + _PRIOR_TESTS)

    def take(self, hit: bool) -> None:
        self.tests = self.tests * _DECAY + 1
        self.hits = self.hits * _DECAY + hit


class _Learnt:
    """Of greedy answers, or of drawn ones."""

    def __init__(self, longest: int) -> None:
        last = len(_FIRST_RATES) - 1
        self._by_length = [_Rate(_FIRST_RATES[min(length, last)]) for length in range(longest)]
        self.model = _Rate(_FIRST_MODEL_RATE)

    def match(self, length: int) -> _Rate:
        """Of matches of so many tokens."""
        return self._by_length[length - 1]

    def prefers_match(self, length: int) -> bool:
        """Whether a match of so many tokens promises more than the model."""
        return self.match(length).value * _FURTHER >= self.model.value


@dataclass(slots=True)
class _State:
    """Of one sequence.

    Attributes:
        index: of its text.
        position: that was guessed last.
        match: length of the match then, and the token that it gave; None where there was none.
        model: the token that the model gave; None where it was not asked, or had none.
    """

    index: NgramIndex
    position: int = 0
    match: tuple[int, int] | None = None
    model: int | None = None


class LookupFirst:
    """See the module.

    Args:
        model: drafts where the text does not.
        shortest: least tokens that must have come before, at least 1.
        longest: most that are looked at.
        depth: most drafts of a match.
    """

    def __init__(self, model: Drafter, shortest: int, longest: int, depth: int) -> None:
        self.points: FeaturePoints | None = model.points
        self.num_layers = model.num_layers
        self.max_drafts = max(model.max_drafts, depth)
        self._model = model
        self._shortest = shortest
        self._longest = longest
        self._depth = depth
        self._learnt = {greedy: _Learnt(longest) for greedy in (True, False)}

    def propose(
        self, sequences: Sequence[EngineSequence], counts: Sequence[int]
    ) -> Sequence[DraftTree | None]:
        """A chain from the text, or what the model drafts."""
        trees: list[DraftTree | None] = []
        asked: list[int] = []
        states = [self._looked_up(sequence) for sequence in sequences]
        for index, (sequence, state, count) in enumerate(zip(sequences, states, counts, strict=True)):
            learnt = self._learnt[sequence.rules.greedy]
            if state.match is not None and learnt.prefers_match(state.match[0]):
                trees.append(DraftTree.chain(state.index.continuation(min(count, self._depth))))
            else:
                trees.append(None)
                asked.append(index)
        if asked:
            chosen = [min(counts[index], self._model.max_drafts) for index in asked]
            drafted = self._model.propose([sequences[index] for index in asked], chosen)
            for index, tree in zip(asked, drafted, strict=True):
                trees[index] = tree
                states[index].model = None if tree is None else tree.token_ids[0]
        return trees

    def extend(self, found: TargetPass) -> None:
        """As the model's."""
        self._model.extend(found)

    def complete(self, sequence: EngineSequence) -> None:
        """As the model's."""
        self._model.complete(sequence)

    def carried(self, sequence: EngineSequence) -> bytes:
        """As the model's: the tokens tell the rest."""
        return self._model.carried(sequence)

    def adopt(self, sequence: EngineSequence, carried: bytes) -> None:
        """As the model's."""
        self._model.adopt(sequence, carried)

    def _looked_up(self, sequence: EngineSequence) -> _State:
        """The sequence's state, with what its text gives now; from what was guessed before is learnt."""
        state = sequence.draft_states.get(self)
        if not isinstance(state, _State):
            state = sequence.draft_states[self] = _State(NgramIndex(self._shortest, self._longest))
        elif state.position < sequence.num_tokens:
            self._learn(state, sequence.token_ids[state.position], self._learnt[sequence.rules.greedy])
        index = state.index
        index.extend(sequence.token_ids[len(index) :])
        followers = index.continuation(1)
        state.position = sequence.num_tokens
        state.match = (index.length, followers[0]) if followers else None
        state.model = None
        return state

    def _learn(self, state: _State, token_id: int, learnt: _Learnt) -> None:
        if state.match is not None:
            length, guessed = state.match
            learnt.match(length).take(guessed == token_id)
        if state.model is not None:
            learnt.model.take(state.model == token_id)
