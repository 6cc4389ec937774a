"""Drafts with an EAGLE head. Implements `engine.speculation.base.Drafter`.

Entries up to a sequence's last known token are written after each of the model's passes, with the features
that it found. Those of a sequence that nobody drafts for wait, and are written in one go: where drafts are
asked for again, before the block that they lie in is published, and before it is kept elsewhere. So no block
that others see lacks an entry for that.

A proposal goes on from there with the head's own outputs, in slots behind them, which the next pass's true
entries overwrite. It ends where the head is not sure enough that the next draft is right, all before it
included. Slots that never got an entry, for the KV came from a worker without a head or a feature was lost
with a preemption, hold zeros, in whatever sequence they are found: drafting begins behind them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from engine.models.batch import ForwardBatch
from engine.models.features import FeaturePoints
from engine.sequence import Sequence as EngineSequence
from engine.speculation.base import Extent, TargetPass
from engine.speculation.carried import pack_feature, unpack_feature
from engine.speculation.eagle.head import EagleHead
from engine.speculation.eagle.state import EagleState
from engine.speculation.eagle.tree import GrowingTree
from engine.speculation.guesses import guess, is_keyed, likeliest
from engine.speculation.spans import Ahead, Span, make_batch
from engine.speculation.tree import MAX_NODES, DraftTree


@dataclass(frozen=True, slots=True)
class DraftShape:
    """How drafts are shaped.

    Attributes:
        depth: most drafts one behind the other.
        width: children of a node, and nodes of a level that are expanded; 1 is a chain.
        size: most drafts of one tree.
        coupled: whether the model's draws are keyed by seed and position, so that a head can guess them, also
            where the client chose no seed.
        least: probability, by the head's own estimate, below which a draft is left out.
    """

    depth: int
    width: int
    size: int
    coupled: bool
    least: float = 0.0

    @property
    def least_log(self) -> float:
        """The logarithm of `least`."""
        return math.log(self.least) if self.least else -math.inf


class EagleDrafter:
    """See the module.

    Args:
        head: of the model.
        kv: the pool, the head's layers behind the model's.
        shape: of drafts.
    """

    def __init__(self, head: EagleHead, kv: torch.Tensor, shape: DraftShape) -> None:
        layers = head.config.layers.num_layers
        if kv.shape[1] < head.first_layer + layers:
            raise ValueError(
                f"the pool has {kv.shape[1]} layers, where model and head need {head.first_layer + layers}"
            )
        self.points: FeaturePoints | None = head.config.points
        self.num_layers = layers
        self.max_drafts = shape.depth if shape.width == 1 else shape.size
        self._head = head
        self._kv = kv
        self._own = kv[:, head.first_layer : head.first_layer + layers]
        self._block_size = kv.shape[4]
        self._shape = shape

    @torch.inference_mode()
    def extend(self, found: TargetPass) -> None:
        """Writes the entries that the pass's features allow."""
        if not found.extents:
            return
        assert found.features is not None
        ends = torch.tensor([extent.rows[-1] for extent in found.extents], device=self._kv.device)
        last = found.features.index_select(0, ends)
        due: list[EngineSequence] = []
        for extent, feature in zip(found.extents, last, strict=True):
            sequence, state = extent.sequence, self._state(extent)
            if len(extent.rows) > 1:
                before = torch.tensor(extent.rows[:-1], device=self._kv.device)
                state.waiting.append(found.features.index_select(0, before))
            state.waiting.append(feature[None])
            state.output = None
            state.feature = feature
            state.computed = extent.first + len(extent.rows)
            if self._is_due(extent, state):
                due.append(sequence)
            state.drafts = False
        self._catch_up(due)

    @torch.inference_mode()
    def propose(
        self, sequences: Sequence[EngineSequence], counts: Sequence[int]
    ) -> Sequence[DraftTree | None]:
        """Drafts of the sequences whose last token has an entry, or can be given one."""
        self._catch_up(sequences)
        for sequence in sequences:
            if isinstance(state := sequence.draft_states.get(self), EagleState):
                state.drafts = True
        trees: list[DraftTree | None] = [None] * len(sequences)
        ready = [
            index
            for index, sequence in enumerate(sequences)
            if isinstance(state := sequence.draft_states.get(self), EagleState)
            and state.output is not None
            and state.entries == sequence.num_tokens
        ]
        if not ready:
            return trees
        chosen = [sequences[index] for index in ready]
        wanted = [min(counts[index], self.max_drafts) for index in ready]
        drafted = self._trees(chosen, wanted) if self._shape.width > 1 else self._chains(chosen, wanted)
        for index, tree in zip(ready, drafted, strict=True):
            trees[index] = tree
        return trees

    def carried(self, sequence: EngineSequence) -> bytes:
        """The model's feature of the last token whose KV is written, [points' width]; empty if not known."""
        state = sequence.draft_states.get(self)
        if not isinstance(state, EagleState) or state.feature is None:
            return b""
        return pack_feature(state.feature)

    @torch.inference_mode()
    def adopt(self, sequence: EngineSequence, carried: bytes) -> None:
        """See `engine.speculation.base.Drafter`.

        Without a feature the context came from a worker without a head: drafting begins at the next token.
        """
        if not carried:
            # But for what was found here, which is as far as blocks are sealed.
            self._clear(self._blocks(sequence)[sequence.num_sealed :])
            return
        width = self._head.config.points.width(self._head.config.target_hidden_size)
        feature = unpack_feature(carried, width, self._kv)
        context = sequence.num_computed
        first = self._first_key(sequence, context)
        sequence.draft_states[self] = EagleState(
            first, context, None, feature, context, [feature[None]], sequence.num_sealed
        )

    @torch.inference_mode()
    def complete(self, sequence: EngineSequence) -> None:
        """Writes the entries that wait."""
        self._catch_up([sequence])

    def _state(self, extent: Extent) -> EagleState:
        """The sequence's state, made such that the next entry is that of `first`, or of the one after."""
        sequence, first = extent.sequence, extent.first
        state = sequence.draft_states.get(self)
        if not isinstance(state, EagleState):
            begun = first == 0 or extent.recomputed
            key = self._first_key(sequence, first + 1) if begun else first + 1
            state = EagleState(key, first + 1, None, None, first, num_sealed=sequence.num_sealed)
            sequence.draft_states[self] = state
            if not begun:
                self._unset(sequence, first, first + 1)
        elif state.computed != first:
            # Features of tokens in between were never seen.
            self._unset(sequence, state.entries, first + 1)
            state.first_key = state.entries = first + 1
            state.waiting.clear()
        return state

    def _is_due(self, extent: Extent, state: EagleState) -> bool:
        """Whether its entries are to be written now: its drafts, its blocks or their reader wait for them."""
        fills = state.computed // self._block_size > extent.first // self._block_size
        return state.drafts or extent.sequence.hold or extent.recomputed or fills

    def _clear(self, blocks: Sequence[int]) -> None:
        """Marks blocks that have no entries."""
        self._own[list(blocks)] = 0

    def _unset(self, sequence: EngineSequence, start: int, end: int) -> None:
        for position in range(start, end):
            block, offset = divmod(position, self._block_size)
            self._own[self._blocks(sequence)[block], :, :, :, offset] = 0

    def _first_key(self, sequence: EngineSequence, end: int) -> int:
        """The first slot from which on all up to `end` have entries."""
        return max(1, self._last_unset(sequence, 0, end) + 1)

    def _last_unset(self, sequence: EngineSequence, first_block: int, end: int) -> int:
        """The last slot before `end`, in that block or one behind it, that has no entry; -1 for none."""
        blocks = self._blocks(sequence)[first_block : -(-end // self._block_size)]
        start = first_block * self._block_size
        keys = self._own[blocks, 0, 0, 0].flatten(0, 1)[: end - start]
        unset = (keys == 0).all(dim=-1).nonzero()
        return start + int(unset[-1]) if len(unset) else -1

    def _look_at_sealed(self, sequence: EngineSequence, state: EagleState) -> None:
        """Sealing may have put a block of another sequence in the place of its own, with fewer entries."""
        if sequence.num_sealed > state.num_sealed:
            end = sequence.num_sealed * self._block_size
            state.first_key = max(state.first_key, self._last_unset(sequence, state.num_sealed, end) + 1)
            state.num_sealed = sequence.num_sealed

    def _blocks(self, sequence: EngineSequence) -> list[int]:
        """Those of the first layer group, in which the head's KV lies."""
        groups = self._head.num_groups
        return sequence.blocks if groups == 1 else sequence.blocks[::groups]

    def _capacity(self, sequence: EngineSequence) -> int:
        """Slots of the sequence."""
        return len(sequence.blocks) // self._head.num_groups * self._block_size

    def _reach(self, sequence: EngineSequence) -> int:
        """End of the slots that are the sequence's and whose token is known."""
        return min(sequence.num_tokens, self._capacity(sequence))

    def _room(self, sequence: EngineSequence) -> int:
        """Slots behind those of the known tokens."""
        return self._capacity(sequence) - sequence.num_tokens

    def _state_of(self, sequence: EngineSequence) -> EagleState:
        state = sequence.draft_states[self]
        assert isinstance(state, EagleState)
        return state

    def _span(self, sequence: EngineSequence, state: EagleState, end: int) -> Span:
        tokens = sequence.token_ids[state.entries : end]
        return Span(self._blocks(sequence), state.entries, tokens, min(state.first_key, state.entries))

    def _write(self, spans: list[Span], states: list[EagleState], features: torch.Tensor) -> None:
        batch = make_batch(spans, self._block_size, self._kv.device)
        # Kept beyond the next call.
        outputs = self._head.forward(batch, self._head.fuse(features), self._kv).clone()
        for state, output in zip(states, outputs, strict=True):
            state.output = output

    def _catch_up(self, sequences: Sequence[EngineSequence]) -> None:
        """Writes the entries that wait, as far as there are blocks for them."""
        spans: list[Span] = []
        states: list[EagleState] = []
        features: list[torch.Tensor] = []
        for sequence in sequences:
            state = sequence.draft_states.get(self)
            if not isinstance(state, EagleState):
                continue
            self._look_at_sealed(sequence, state)
            if not state.waiting:
                continue
            end = min(state.computed + 1, self._reach(sequence))
            if end == state.entries:
                continue
            spans.append(self._span(sequence, state, end))
            states.append(state)
            features += state.waiting
            state.waiting = []
            if end == state.computed:
                # There is no block for the last one.
                features[-1], last = features[-1][:-1], features[-1][-1:]
                state.waiting.append(last)
            state.entries = end
        if spans:
            self._write(spans, states, torch.cat(features))

    def _chains(self, sequences: list[EngineSequence], counts: list[int]) -> list[DraftTree | None]:
        states = [self._state_of(sequence) for sequence in sequences]
        # Drafts but the last are entries, too.
        counts = [
            min(count, self._room(sequence) + 1) for sequence, count in zip(sequences, counts, strict=True)
        ]
        chains: list[list[int]] = [[] for _ in sequences]
        scores = [0.0] * len(sequences)
        sure: list[list[float]] = [[] for _ in sequences]
        active = list(range(len(sequences)))
        outputs = torch.stack([_output(state) for state in states])
        coupled, least = self._shape.coupled, self._shape.least_log
        plain = not any(is_keyed(sequence.rules, coupled) for sequence in sequences)
        following: Ahead | None = None
        for ahead in range(max(counts)):
            logits = self._head.logits(outputs)
            if plain:
                found = likeliest(self._head, logits)
            else:
                rules = [sequences[index].rules for index in active]
                found = guess(self._head, logits, rules, [ahead] * len(active), 1, coupled)
            going: list[int] = []
            pairs = zip(found.token_ids[:, 0].tolist(), found.log_probs[:, 0].tolist(), strict=True)
            for row, (index, (token_id, log_prob)) in enumerate(zip(active, pairs, strict=True)):
                scores[index] += min(log_prob, 0.0)
                if not scores[index] >= least:
                    continue
                chains[index].append(token_id)
                sure[index].append(math.exp(scores[index]))
                if counts[index] > ahead + 1:
                    going.append(row)
            if not going:
                break
            if len(going) < len(active):
                outputs = outputs[going]
            active = [active[row] for row in going]
            if following is None:
                spans = [
                    Span(self._blocks(sequence), sequence.num_tokens, (), state.first_key)
                    for sequence, state in zip(sequences, states, strict=True)
                ]
                following = Ahead(spans, [count - 1 for count in counts], self._block_size, self._kv.device)
            batch = following.batch(ahead, active, [chains[index][-1] for index in active])
            outputs = self._head.forward(batch, outputs, self._kv)
        return [
            DraftTree.chain(tuple(chain), confidence=tuple(own)) if chain else None
            for chain, own in zip(chains, sure, strict=True)
        ]

    def _trees(self, sequences: list[EngineSequence], counts: list[int]) -> list[DraftTree | None]:
        width = self._shape.width
        growing = [
            GrowingTree(count, min(self._room(sequence), MAX_NODES - 1), self._shape.least_log)
            for sequence, count in zip(sequences, counts, strict=True)
        ]
        # Of each row of outputs its sequence and which of its expanded nodes it is.
        owners = [(index, 0) for index in range(len(sequences))]
        outputs = torch.stack([_output(self._state_of(sequence)) for sequence in sequences])
        for ahead in range(self._shape.depth):
            logits = self._head.logits(outputs)
            rules = [sequences[index].rules for index, _ in owners]
            found = guess(self._head, logits, rules, [ahead] * len(owners), width, self._shape.coupled)
            token_ids, log_probs = found.token_ids.tolist(), found.log_probs.tolist()
            for index, tree in enumerate(growing):
                rows = [row for row, owner in enumerate(owners) if owner[0] == index]
                tree.add(
                    [owners[row][1] for row in rows],
                    [token_ids[row] for row in rows],
                    [log_probs[row] for row in rows],
                )
            if ahead + 1 == self._shape.depth:
                break
            parents = {owner: row for row, owner in enumerate(owners)}
            owners, rows = [], []
            for index, tree in enumerate(growing):
                before = len(tree.expanded)
                for node, place in enumerate(tree.expand(width), start=before + 1):
                    owners.append((index, node))
                    rows.append(parents[index, tree.candidates[place].parent])
            if not owners:
                break
            batch = self._level(sequences, growing, owners, ahead)
            outputs = self._head.forward(batch, outputs[rows], self._kv)
        return [tree.finish() for tree in growing]

    def _level(
        self,
        sequences: list[EngineSequence],
        growing: list[GrowingTree],
        owners: list[tuple[int, int]],
        ahead: int,
    ) -> ForwardBatch:
        """The batch of a level of nodes, whose entries lie behind those of the nodes expanded before."""
        present = sorted({index for index, _ in owners})
        spans = []
        for index in present:
            nodes = [node for owner, node in owners if owner == index]
            sequence, tree = sequences[index], growing[index]
            tokens = [tree.candidates[tree.expanded[node - 1]].token_id for node in nodes]
            first = sequence.num_tokens - 1 + nodes[0]
            spans.append(Span(self._blocks(sequence), first, tokens, self._state_of(sequence).first_key))
        batch = make_batch(spans, self._block_size, self._kv.device)
        last = np.array([sequences[index].num_tokens - 1 for index, _ in owners], dtype=np.int64)
        bits = np.array([_signed(growing[index].visible[node]) for index, node in owners], dtype=np.int64)
        return replace(
            batch,
            positions=torch.from_numpy(last + ahead + 1).to(self._kv.device),
            logits_rows=torch.arange(len(owners), device=self._kv.device),
            visible=torch.from_numpy(bits).to(self._kv.device),
            tree_starts=tuple(sequences[index].num_tokens - 1 for index in present),
        )


def _output(state: EagleState) -> torch.Tensor:
    assert state.output is not None
    return state.output


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >> 63 else bits
