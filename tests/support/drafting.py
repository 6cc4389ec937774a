"""Drives a model and a drafter by hand: passes, verification by the sampler, notes of what was found."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.api import EngineRequest, SamplingParams
from engine.kv.storage import allocate_pool
from engine.models.base import CausalLM, DraftedLM
from engine.models.batch import ForwardBatch
from engine.models.features import FeaturePoints, FeatureTap
from engine.models.layer_groups import layers_per_block
from engine.sampling.rules import TokenRules
from engine.sampling.sampler import Sampler
from engine.sequence import Sequence as EngineSequence
from engine.speculation.base import Extent, TargetPass
from engine.speculation.eagle.drafter import DraftShape, EagleDrafter
from engine.speculation.eagle.head import EagleHead
from engine.speculation.tree import DraftTree


def new_sequence(
    prompt: Sequence[int], vocab_size: int, temperature: float = 0.0, seed: int = 0, hold: bool = False
) -> EngineSequence:
    """A sequence with its rules and no blocks."""
    params = SamplingParams(
        temperature=temperature, top_p=1.0, top_k=0, seed=seed, choice=0, max_tokens=10_000
    )
    request = EngineRequest(f"r{seed}", tuple(prompt), params)
    sequence = EngineSequence(request, seed, hold, 0.0)
    sequence.rules = TokenRules(params, tuple(prompt), (), frozenset(), vocab_size)
    return sequence


class Drafting:
    """A model, a head and a pool, blocks handed out in a shuffled order.

    Args:
        model: the model.
        head: for it.
        shape: of drafts.
        block_size: tokens in a block.
        num_blocks: in the pool.
        unset: what the draft layers of the pool are full of at first.

    Attributes:
        accepted: drafts that were right, of each step and sequence.
        trees: what was proposed last.
    """

    def __init__(
        self,
        model: DraftedLM,
        head: EagleHead,
        shape: DraftShape,
        block_size: int = 4,
        num_blocks: int = 96,
        unset: float = 0.0,
    ) -> None:
        self.model = model
        self.block_size = block_size
        layers = head.config.layers.num_layers
        self.kv = allocate_pool(model.config, num_blocks, block_size, torch.float32, draft_layers=layers)
        groups = model.config.layer_groups
        self.num_groups, self.model_layers = len(groups), layers_per_block(groups)
        self.kv[:, self.model_layers :] = unset
        self.drafter = EagleDrafter(head, self.kv, shape)
        order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(0))
        self.free = (order + 1).tolist()
        self.accepted: list[int] = []
        self.trees: list[DraftTree | None] = []
        self._sampler = Sampler()

    def start(self, prompt: Sequence[int], temperature: float = 0.0, seed: int = 0) -> EngineSequence:
        """A sequence with blocks for its prompt and one token more."""
        sequence = new_sequence(prompt, self.model.config.vocab_size, temperature, seed)
        self.grow(sequence, len(prompt) + 1)
        return sequence

    def grow(self, sequence: EngineSequence, num_tokens: int) -> None:
        """Gives a sequence blocks for so many tokens."""
        while len(sequence.blocks) // self.num_groups * self.block_size < num_tokens:
            sequence.blocks += [self.free.pop() for _ in range(self.num_groups)]

    def prefill(self, sequence: EngineSequence, chunk: int = 1000) -> None:
        """Computes a context in chunks and draws the token that follows."""
        while not sequence.context_done:
            self.run([sequence], [min(chunk, sequence.num_uncomputed)])

    def step(self, sequences: list[EngineSequence], counts: list[int]) -> None:
        """Proposes, verifies, takes note."""
        for sequence, count in zip(sequences, counts, strict=True):
            self.grow(sequence, sequence.num_tokens + count + 1)
        wanted = [index for index, count in enumerate(counts) if count]
        proposed = self.drafter.propose(
            [sequences[index] for index in wanted], [counts[index] for index in wanted]
        )
        self.trees = list(proposed)
        for index, tree in zip(wanted, proposed, strict=True):
            sequences[index].drafts = tree
        self.run(sequences, [1 if s.drafts is None else s.drafts.num_nodes for s in sequences])

    def run(self, sequences: list[EngineSequence], counts: list[int]) -> None:
        """One pass: of a sequence either tokens of its context, or its last token and its drafts."""
        batch = self._batch(sequences, counts)
        points: FeaturePoints = self.drafter.points
        features = torch.empty(len(batch.token_ids), points.width(self.model.config.hidden_size))
        logits = self.model.forward(batch, self.kv, FeatureTap(points, features))
        extents = []
        for index, (sequence, count) in enumerate(zip(sequences, counts, strict=True)):
            start, first = batch.query_starts[index], sequence.num_computed
            recomputed, sequence.recompute_last = sequence.recompute_last, False
            rows: Sequence[int] = range(start, start + count)
            if sequence.drafts is not None:
                path = self._verify(sequence, logits[start : start + count])
                self._compact(sequence, path)
                rows = [start + node for node in path]
                self.accepted.append(len(path) - 1)
                sequence.num_computed += len(path)
                sequence.drafts = None
            else:
                sequence.num_computed += count
                if sequence.num_uncomputed == 0:
                    self._draw(sequence, logits[start + count - 1])
                    self.accepted.append(0)
                    sequence.context_done = True
            extents.append(Extent(sequence, first, rows, recomputed))
        self.drafter.extend(TargetPass(tuple(extents), features))

    def _verify(self, sequence: EngineSequence, logits: torch.Tensor) -> list[int]:
        tree, path = sequence.drafts, [0]
        assert tree is not None
        while True:
            token = self._draw(sequence, logits[path[-1]])
            for child in tree.children[path[-1]]:
                if tree.token_ids[child - 1] == token:
                    path.append(child)
                    break
            else:
                return path

    def _draw(self, sequence: EngineSequence, logits: torch.Tensor) -> int:
        token: int = self._sampler.sample(logits[None], [sequence.rules]).token_ids[0]
        sequence.rules.advance(token)
        sequence.token_ids.append(token)
        return token

    def _compact(self, sequence: EngineSequence, path: list[int]) -> None:
        """Moves the model's KV of taken nodes to where their tokens stand."""
        layers = self.model_layers
        for depth, node in enumerate(path):
            source, target = self._place(sequence, node), self._place(sequence, depth)
            self.kv[target[0], :layers, :, :, target[1]] = self.kv[source[0], :layers, :, :, source[1]]

    def _place(self, sequence: EngineSequence, ahead: int) -> tuple[list[int], int]:
        """The block of each layer group, and the offset in it."""
        page, offset = divmod(sequence.num_computed + ahead, self.block_size)
        return sequence.blocks[page * self.num_groups :][: self.num_groups], offset

    def _batch(self, sequences: list[EngineSequence], counts: list[int]) -> ForwardBatch:
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[list[int]] = []
        visible: list[int] = []
        starts, contexts = [0], []
        for sequence, count in zip(sequences, counts, strict=True):
            first, tree = sequence.num_computed, sequence.drafts
            new = sequence.token_ids[first : first + count]
            if tree is not None:
                new = [*new, *tree.token_ids]
            assert len(new) == count
            tokens += new
            positions += [first + (i if tree is None else tree.depths[i]) for i in range(count)]
            visible += [0] * count if tree is None or tree.is_chain else tree.visible
            for ahead in range(count):
                blocks, offset = self._place(sequence, ahead)
                known = sequence.recompute_last and ahead == 0
                slots.append([(0 if known else block * self.block_size) + offset for block in blocks])
            starts.append(len(tokens))
            contexts.append(first + count)
        width = max(len(sequence.blocks) for sequence in sequences)
        return ForwardBatch(
            token_ids=torch.tensor(tokens),
            positions=torch.tensor(positions),
            slots=torch.tensor(slots).T.contiguous(),
            query_starts=tuple(starts),
            context_lens=tuple(contexts),
            block_tables=torch.tensor(
                [
                    [(s.blocks + [0] * (width - len(s.blocks)))[group :: self.num_groups] for s in sequences]
                    for group in range(self.num_groups)
                ]
            ),
            logits_rows=torch.arange(len(tokens)),
            visible=torch.tensor(visible) if any(visible) else None,
        )


def whole_pass(
    model: CausalLM, tokens: Sequence[int], logits_rows: torch.Tensor
) -> tuple[ForwardBatch, torch.Tensor]:
    """One pass over all tokens, and a pool of its own."""
    blocks = torch.arange(1, len(model.config.layer_groups) + 1)[:, None]
    kv = allocate_pool(model.config, 2 * len(blocks), len(tokens), torch.float32)
    positions = torch.arange(len(tokens))
    batch = ForwardBatch(
        token_ids=torch.tensor(tokens),
        positions=positions,
        slots=len(tokens) * blocks + positions,
        query_starts=(0, len(tokens)),
        context_lens=(len(tokens),),
        block_tables=blocks[..., None],
        logits_rows=logits_rows,
    )
    return batch, kv


def features_of(model: DraftedLM, points: FeaturePoints, tokens: Sequence[int]) -> torch.Tensor:
    """The model's features of all tokens, computed in one pass over a pool of its own."""
    batch, kv = whole_pass(model, tokens, torch.arange(len(tokens)))
    features = torch.empty(len(tokens), points.width(model.config.hidden_size))
    model.forward(batch, kv, FeatureTap(points, features))
    return features
