"""Batches of answers in an order that only seed and step decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from training.answers import Answer, AnswerShard
from training.unroll import Batch


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """Answers, packed.

    Attributes:
        batch: what is unrolled; A anchors in all.
        final: [A, H] bf16, what the target's LM head saw there.
        log_totals: [A] fp32, as `Answer.log_totals`.
        anchor_of: [T], of each token the row of these; -1 where it is no anchor.
        answers: where the rows come from.
    """

    batch: Batch
    final: torch.Tensor
    log_totals: torch.Tensor
    anchor_of: torch.Tensor
    answers: tuple[Answer, ...]


class Answers:
    """Answers of several shards.

    Args:
        shards: of which all answers that leave something to guess are taken.
    """

    def __init__(self, shards: Sequence[AnswerShard]) -> None:
        self._places = [
            (shard, index) for shard in shards for index in range(len(shard)) if shard.num_anchors(index)
        ]

    def __len__(self) -> int:
        return len(self._places)

    @property
    def num_anchors(self) -> int:
        """Positions from which something is guessed, in one pass over the answers."""
        return sum(shard.num_anchors(index) for shard, index in self._places)

    def read(self, number: int) -> Answer:
        """One answer."""
        shard, index = self._places[number]
        return shard.read(index)

    def batches(self, seed: int, epoch: int, tokens: int) -> list[list[int]]:
        """One pass over the answers in random order, cut into batches of at least `tokens` anchors each.

        The last, smaller one is left out where there are others.
        """
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))
        batches: list[list[int]] = [[]]
        filled = 0
        for number in order.tolist():
            shard, index = self._places[number]
            batches[-1].append(number)
            filled += shard.num_anchors(index)
            if filled >= tokens:
                batches.append([])
                filled = 0
        return batches[:-1] if len(batches) > 1 else batches


def pack(answers: Sequence[Answer], device: str) -> TrainingBatch:
    """Lays answers side by side."""
    starts, anchors, features = [0], [], []
    for answer in answers:
        length = len(answer.token_ids)
        starts.append(starts[-1] + length)
        anchors.append((answer.prompt_length, length - 2))
        # The last token was never run: it has neither features nor successors.
        features.append(torch.cat((answer.features, torch.zeros_like(answer.features[:1]))))
    told = torch.zeros(starts[-1], dtype=torch.bool)
    for start, (first, last) in zip(starts, anchors, strict=False):
        told[start + first : start + last + 1] = True
    token_ids = torch.cat([answer.token_ids for answer in answers]).long()
    return TrainingBatch(
        batch=Batch(token_ids.to(device), torch.cat(features).to(device), tuple(starts), tuple(anchors)),
        final=torch.cat([answer.final for answer in answers]).to(device),
        log_totals=torch.cat([answer.log_totals for answer in answers]).to(device),
        anchor_of=(told.cumsum(0) - 1).masked_fill(~told, -1).to(device),
        answers=tuple(answers),
    )


def feature_scale(answers: Answers, count: int) -> torch.Tensor:
    """Reciprocal of each feature's root mean square over the first `count` answers, [3 H] fp32.

    First tokens are left out: their features are a thousand times as large, and nothing reads them but what
    follows directly.
    """
    sums, rows = torch.zeros(1), 0
    for number in range(min(count, len(answers))):
        features = answers.read(number).features[1:].float()
        sums = sums + features.square().sum(dim=0)
        rows += len(features)
    return torch.rsqrt(sums / max(rows, 1) + 1e-6)
