"""Drives a model over a KV pool by hand-made batches, without a scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from engine.kv.storage import allocate_pool
from engine.models.base import CausalLM
from engine.models.batch import ForwardBatch


@dataclass(slots=True)
class PagedSequence:
    """A sequence's tokens, how many of them have KV, and its blocks, page by page."""

    tokens: list[int]
    blocks: list[int]
    computed: int = 0


def make_batch(
    sequences: Sequence[tuple[Sequence[int], int, Sequence[int]]],
    block_size: int,
    scratch: bool = False,
    num_groups: int = 1,
) -> ForwardBatch:
    """Batch of (new tokens, tokens before them, blocks page by page) with the logits of every row.

    `scratch` throws the new KV away, as for prefix hits whose logits are wanted again.
    """
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[list[int]] = []
    starts = [0]
    contexts = []
    width = max(len(blocks) for _, _, blocks in sequences)
    for new, before, blocks in sequences:
        token_ids += new
        for position in range(before, before + len(new)):
            positions.append(position)
            page = position // block_size * num_groups
            owners = [0] * num_groups if scratch else blocks[page : page + num_groups]
            slots.append([block * block_size + position % block_size for block in owners])
        starts.append(len(token_ids))
        contexts.append(before + len(new))
    return ForwardBatch(
        token_ids=torch.tensor(token_ids),
        positions=torch.tensor(positions),
        slots=torch.tensor(slots).T.contiguous(),
        query_starts=tuple(starts),
        context_lens=tuple(contexts),
        block_tables=torch.tensor(
            [
                [[*blocks, *[0] * (width - len(blocks))][group::num_groups] for _, _, blocks in sequences]
                for group in range(num_groups)
            ]
        ),
        logits_rows=torch.arange(len(token_ids)),
    )


@dataclass(slots=True)
class PagedModel:
    """A model, its pool, and blocks handed out in a shuffled order and never taken back."""

    model: CausalLM
    num_pages: int = 64
    block_size: int = 16
    dtype: torch.dtype = torch.float32
    num_groups: int = field(init=False)
    kv: torch.Tensor = field(init=False)
    free: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.num_groups = len(self.model.config.layer_groups)
        num_blocks = self.num_pages * self.num_groups
        self.kv = allocate_pool(self.model.config, num_blocks, self.block_size, self.dtype)
        order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(0))
        self.free = (order + 1).tolist()

    def start(self, tokens: Sequence[int], max_tokens: int) -> PagedSequence:
        """A sequence with room for `max_tokens` more tokens."""
        count = -(-(len(tokens) + max_tokens) // self.block_size) * self.num_groups
        blocks, self.free = self.free[:count], self.free[count:]
        assert len(blocks) == count, "the test's pool is too small"
        return PagedSequence(list(tokens), blocks)

    def advance(self, steps: Sequence[tuple[PagedSequence, int]]) -> list[torch.Tensor]:
        """Computes the next n tokens of each sequence in one batch; the logits of each, [n, vocab]."""
        parts = []
        for sequence, count in steps:
            new = sequence.tokens[sequence.computed : sequence.computed + count]
            parts.append((new, sequence.computed, sequence.blocks))
            sequence.computed += len(new)
        # A model may use the memory of its result again.
        logits = self.model.forward(
            make_batch(parts, self.block_size, num_groups=self.num_groups), self.kv
        ).clone()
        return list(logits.split([len(new) for new, _, _ in parts]))

    def prefill(self, sequence: PagedSequence, chunk: int) -> torch.Tensor:
        """Computes all tokens in chunks; their logits, [tokens, vocab]."""
        logits = []
        while sequence.computed < len(sequence.tokens):
            logits += self.advance([(sequence, chunk)])
        return torch.cat(logits)

    def greedy(self, prompts: Sequence[Sequence[int]], max_tokens: int, chunk: int) -> list[list[int]]:
        """Greedy continuations, all sequences decoded side by side. No stop tokens."""
        sequences = [self.start(prompt, max_tokens) for prompt in prompts]
        for sequence in sequences:
            sequence.tokens.append(int(self.prefill(sequence, chunk)[-1].argmax()))
        for _ in range(max_tokens - 1):
            for sequence, logits in zip(
                sequences, self.advance([(sequence, 1) for sequence in sequences]), strict=True
            ):
                sequence.tokens.append(int(logits[-1].argmax()))
        return [s.tokens[len(prompt) :] for s, prompt in zip(sequences, prompts, strict=True)]
