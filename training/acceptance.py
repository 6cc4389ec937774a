"""How many guesses of a head would be accepted, on answers that it was not trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

import torch

from training.answers import Answer
from training.dataset import pack
from training.head import Eagle3Head
from training.loss import lm_head_loss
from training.teacher import Teacher
from training.unroll import unroll


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Of chains of k guesses.

    Attributes:
        tokens_per_pass: on greedy answers, the target's own token included: what decoding with such chains
            would have taken.
        by_position: on greedy answers, for each guess of a chain the share that is right where all before
            it are.
        by_kind: tokens a pass by kind of prompt.
        sampled: on answers drawn at temperature 1, for each guess the chance that a drawn one is accepted.
        sampled_tokens_per_pass: what follows from these.
        loss: cross-entropy of the first guess, nats.
    """

    tokens_per_pass: float
    by_position: tuple[float, ...]
    by_kind: dict[str, float]
    sampled: tuple[float, ...]
    sampled_tokens_per_pass: float
    loss: float


@dataclass(frozen=True, slots=True)
class Guesses:
    """Of k guesses from each of the n anchors of one answer.

    Attributes:
        made: [k, n] bool, whether the answer goes on so far.
        right: [k, n] bool, whether the guess is the answer's token.
        overlap: [k, n], the chance that a drawn guess is accepted.
        loss: cross-entropy of the first guesses, summed.
    """

    made: torch.Tensor
    right: torch.Tensor
    overlap: torch.Tensor
    loss: float

    @property
    def accepted(self) -> list[int]:
        """From each anchor on, how many guesses are right without a gap."""
        counts: list[int] = self.right.long().cumprod(dim=0).sum(dim=0).tolist()
        return counts

    def passes(self) -> list[int]:
        """Tokens of each pass of the target: the right guesses and one of its own, while the answer lasts."""
        accepted, taken, position = self.accepted, [], 0
        while position < len(accepted):
            taken.append(min(accepted[position] + 1, len(accepted) - position))
            position += taken[-1]
        return taken


@torch.no_grad()
def guess_along(head: Eagle3Head, teacher: Teacher, answer: Answer, num_guesses: int) -> Guesses:
    """Lets a head guess from every anchor of an answer, `num_guesses` tokens ahead."""
    training = pack([answer], str(teacher.embedding.device))
    first, last = training.batch.anchors[0]
    shape = (num_guesses, last - first + 1)
    made, right = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)
    overlap = torch.zeros(shape)
    loss = 0.0
    probabilities = teacher.probabilities(training)
    for step, found in enumerate(unroll(head, teacher.embedding, training.batch, num_guesses)):
        part, guesses, shared = lm_head_loss(
            head.norm(found.hidden),
            head.lm_head.weight,
            probabilities,
            training.anchor_of.index_select(0, found.places),
            torch.ones(len(found.places), device=found.places.device),
        )
        if step == 0:
            loss = float(part)
        anchors = (found.places - step - first).cpu()
        ids = teacher.token_ids.index_select(0, guesses)
        made[step, anchors] = True
        right[step, anchors] = (ids == training.batch.token_ids.index_select(0, found.places + 1)).cpu()
        overlap[step, anchors] = shared.cpu()
    return Guesses(made, right, overlap, loss)


def measure(head: Eagle3Head, teacher: Teacher, answers: Sequence[Answer], num_guesses: int) -> Acceptance:
    """Lets a head guess along answers.

    Args:
        head: the head.
        teacher: of its draft vocabulary.
        answers: greedy and drawn ones.
        num_guesses: length of a chain.
    """
    reached, right, chances, overlap = torch.zeros(4, num_guesses)
    passes: dict[str, list[int]] = {}
    loss = anchors = 0.0
    for answer in answers:
        found = guess_along(head, teacher, answer, num_guesses)
        loss += found.loss
        anchors += found.made.shape[1]
        if answer.greedy:
            so_far = found.right.long().cumprod(dim=0).bool()
            before = torch.cat((torch.ones_like(so_far[:1]), so_far[:-1]))
            reached += (before & found.made).sum(dim=1)
            right += so_far.sum(dim=1)
            passes.setdefault(answer.kind, []).extend(found.passes())
        else:
            chances += found.made.sum(dim=1)
            overlap += found.overlap.sum(dim=1)
    sampled = (overlap / chances.clamp(min=1)).tolist()
    return Acceptance(
        tokens_per_pass=_mean([taken for own in passes.values() for taken in own]),
        by_position=tuple((right / reached.clamp(min=1)).tolist()),
        by_kind={kind: _mean(taken) for kind, taken in sorted(passes.items())},
        sampled=tuple(sampled),
        sampled_tokens_per_pass=1 + sum(accumulate(sampled, mul)),
        loss=loss / max(anchors, 1),
    )


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values) if values else 0.0
