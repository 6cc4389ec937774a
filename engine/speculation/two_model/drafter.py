"""Drafts with a small model (Leviathan et al., 2023). Implements `engine.speculation.base.Drafter`.

The draft model computes a sequence's tokens when drafts are first asked for, a portion in each step: so a
decode worker drafts soon after a handover, and where nobody asks for drafts they cost nothing. Guesses are
what the draft model itself would draw next: by the rules of the hypothetical prefix, and with the noise with
which the target draws there, so that both often draw the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from engine.models.base import CausalLM
from engine.models.features import FeaturePoints
from engine.sampling.sampler import Sampler
from engine.sequence import Sequence as EngineSequence
from engine.speculation.base import TargetPass
from engine.speculation.settings import refuse_carried
from engine.speculation.spans import Span, make_batch
from engine.speculation.tree import DraftTree
from engine.speculation.two_model.cache import DraftCache
from engine.speculation.two_model.chain import DraftChain, DraftState
from engine.speculation.verification.base import Bounds


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """What drafting keeps to.

    Attributes:
        drafts: most of one sequence.
        portion: tokens that are computed in a step of sequences that lack more than a step adds.
        context: most tokens that the draft model takes.
        vocab_size: of the target.
        tells: whether drafts that are drawn come with what they were drawn from.
    """

    drafts: int
    portion: int
    context: int
    vocab_size: int
    tells: bool


class TwoModelDrafter:
    """See the module.

    Args:
        model: the draft model.
        cache: for its KV.
        sampler: draws drafts.
        bounds: where answers end.
        limits: of drafting.
    """

    points: FeaturePoints | None = None
    num_layers = 0

    def __init__(
        self, model: CausalLM, cache: DraftCache, sampler: Sampler, bounds: Bounds, limits: DraftLimits
    ) -> None:
        self.max_drafts = limits.drafts
        self._model = model
        self._cache = cache
        self._sampler = sampler
        self._bounds = bounds
        self._limits = limits
        self._step = 0
        self._left = limits.portion

    @torch.inference_mode()
    def propose(
        self, sequences: Sequence[EngineSequence], counts: Sequence[int]
    ) -> Sequence[DraftTree | None]:
        """Drafts of the sequences whose tokens are all computed."""
        chains, logits = self._catch_up(sequences, counts)
        try:
            growing = chains
            while growing:
                self._choose(growing, logits)
                growing = [chain for chain in growing if not chain.is_complete]
                if growing:
                    logits = self._extend_chains(growing)
        finally:
            for chain in chains:
                chain.take_back()
        trees: list[DraftTree | None] = [None] * len(sequences)
        for chain in chains:
            trees[chain.place] = chain.finish()
        return trees

    def extend(self, found: TargetPass) -> None:
        """The tokens are the sequences' own: only a step is over."""
        self._step += 1
        self._left = self._limits.portion

    def complete(self, sequence: EngineSequence) -> None:
        """Nothing: it keeps no KV in the blocks."""

    def carried(self, sequence: EngineSequence) -> bytes:
        """Nothing: the tokens tell it all."""
        return b""

    def adopt(self, sequence: EngineSequence, carried: bytes) -> None:
        """See `engine.speculation.base.Drafter`."""
        refuse_carried(carried)

    def _catch_up(
        self, sequences: Sequence[EngineSequence], counts: Sequence[int]
    ) -> tuple[list[DraftChain], torch.Tensor]:
        """Computes what sequences lack, as far as it may be done in this step.

        Returns:
            Empty chains of those that lack nothing any more, and logits of what follows, [chains, vocab].
        """
        chains: list[DraftChain] = []
        spans: list[Span] = []
        whole: list[int] = []
        for place, (sequence, count) in enumerate(zip(sequences, counts, strict=True)):
            state, end = self._state(sequence), sequence.num_tokens
            most = min(count, self.max_drafts, self._limits.context - end + 1)
            # However often it is asked for drafts, a step does for a sequence what it does once.
            is_done = state.step == self._step and state.computed < end
            if most < 1 or state.is_broken or is_done:
                continue
            if not self._cache.reach(state.blocks, end + most - 1):
                state.computed, state.step = 0, self._step
                continue
            # The last token's logits are wanted in any case.
            start = min(state.computed, end - 1)
            if end - start > self.max_drafts + 1:
                end = min(end, start + self._left)
                self._left -= end - start
            if end == start:
                continue
            state.computed, state.step = end, self._step
            if end == sequence.num_tokens:
                whole.append(len(spans))
                chains.append(DraftChain(place, sequence, state, most))
            spans.append(self._span(state, start, sequence.token_ids[start:end]))
        return chains, self._run(spans, whole) if spans else torch.empty(0, self._limits.vocab_size)

    def _choose(self, chains: Sequence[DraftChain], logits: torch.Tensor) -> None:
        """A draft for each chain, from the draft model's logits of what follows, [chains, vocab]."""
        rules = [chain.sequence.rules for chain in chains]
        sampled = self._sampler.sample(logits, rules)
        told: torch.Tensor | None = None
        if self._limits.tells and not all(rule.greedy for rule in rules):
            told = self._sampler.distributions(logits, rules).probabilities
        without = {*sampled.not_numbers, *sampled.stuck}
        for row, chain in enumerate(chains):
            if row in without:
                chain.is_complete = True
            else:
                drawn_from = None if told is None or rules[row].greedy else told[row]
                chain.take(sampled.token_ids[row], drawn_from, self._bounds)
        for row in sampled.not_numbers:
            chains[row].state.is_broken = True
            self._cache.scrub(chains[row].state.blocks)

    def _extend_chains(self, chains: Sequence[DraftChain]) -> torch.Tensor:
        """Computes the last draft of each chain: logits of what follows, [chains, vocab]."""
        spans = []
        for chain in chains:
            last = chain.token_ids[-1]
            spans.append(self._span(chain.state, chain.state.computed + len(chain.state.guessed), [last]))
            chain.state.guessed.append(last)
        return self._run(spans, range(len(spans)))

    def _run(self, spans: Sequence[Span], whole: Sequence[int]) -> torch.Tensor:
        """Computes tokens; the logits of what follows those spans that are `whole`, [whole, vocab]."""
        cache = self._cache
        batch = make_batch(spans, cache.block_size, cache.kv.device, cache.num_groups)
        rows = batch.logits_rows[torch.tensor(whole, dtype=torch.int64, device=cache.kv.device)]
        logits = self._model.forward(replace(batch, logits_rows=rows, first_keys=None), cache.kv)
        # Rows of embeddings and LM heads may be padded to different sizes.
        missing = self._limits.vocab_size - logits.shape[1]
        if missing > 0:
            return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
        return logits[:, : self._limits.vocab_size]

    def _span(self, state: DraftState, first: int, token_ids: Sequence[int]) -> Span:
        # Padding stands for no token, so it does not matter which.
        last = self._model.config.vocab_size - 1
        return Span(state.blocks.ids, first, [min(token_id, last) for token_id in token_ids])

    def _state(self, sequence: EngineSequence) -> DraftState:
        """The sequence's state, what it went on with taken note of."""
        state = sequence.draft_states.get(self)
        if not isinstance(state, DraftState):
            state = sequence.draft_states[self] = DraftState(self._cache.open())
        state.settle(sequence.token_ids)
        return state
