"""How many guesses of a head would be accepted, on answers that it was not trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(slots=True)
class _Tally:
    passes: int = 0
    tokens: int = 0

    @property
    def mean(self) -> float:
        return self.tokens / self.passes if self.passes else 0.0


@torch.no_grad()
def measure(head: Eagle3Head, teacher: Teacher, answers: Sequence[Answer], num_guesses: int) -> Acceptance:
    """Lets a head guess along answers.

    Args:
        head: the head.
        teacher: of its draft vocabulary.
        answers: greedy and drawn ones.
        num_guesses: length of a chain.
    """
    device = str(teacher.embedding.device)
    reached = torch.zeros(num_guesses)
    right_so_far = torch.zeros(num_guesses)
    overlap, chances = torch.zeros(num_guesses), torch.zeros(num_guesses)
    kinds: dict[str, _Tally] = {}
    loss, rows = 0.0, 0
    for answer in answers:
        training = pack([answer], device)
        first, last = training.batch.anchors[0]
        # accepted[a]: guesses from anchor a on that are right without a gap.
        accepted = torch.zeros(last - first + 1, dtype=torch.int64)
        alive = torch.ones(len(accepted), dtype=torch.bool)
        probabilities = teacher.probabilities(training)
        for step, found in enumerate(unroll(head, teacher.embedding, training.batch, num_guesses)):
            ones = torch.ones(len(found.places), device=found.places.device)
            part, guesses, shared = lm_head_loss(
                head.norm(found.hidden), head.lm_head.weight, probabilities, found.places, ones
            )
            if step == 0:
                loss, rows = loss + float(part), rows + len(ones)
            if not answer.greedy:
                overlap[step] += float(shared.sum())
                chances[step] += len(ones)
                continue
            anchors = (found.places - step - first).cpu()
            ids = teacher.token_ids.index_select(0, guesses)
            right = (ids == training.batch.token_ids.index_select(0, found.places + 1)).cpu()
            before = torch.zeros_like(alive)
            before[anchors] = alive[anchors]
            now = torch.zeros_like(alive)
            now[anchors] = right & alive[anchors]
            reached[step] += int(before.sum())
            right_so_far[step] += int(now.sum())
            accepted += now
            alive = now
        if answer.greedy:
            _walk(accepted.tolist(), kinds.setdefault(answer.kind, _Tally()))
    sampled = (overlap / chances.clamp(min=1)).tolist()
    return Acceptance(
        tokens_per_pass=_Tally(
            sum(tally.passes for tally in kinds.values()), sum(tally.tokens for tally in kinds.values())
        ).mean,
        by_position=tuple((right_so_far / reached.clamp(min=1)).tolist()),
        by_kind={kind: tally.mean for kind, tally in sorted(kinds.items())},
        sampled=tuple(sampled),
        sampled_tokens_per_pass=1 + sum(torch.tensor(sampled).cumprod(0).tolist()),
        loss=loss / max(rows, 1),
    )


def _walk(accepted: list[int], tally: _Tally) -> None:
    """Decodes an answer: each pass takes the right guesses and one token of the target's own."""
    position = 0
    while position < len(accepted):
        taken = accepted[position] + 1
        tally.passes += 1
        tally.tokens += min(taken, len(accepted) - position)
        position += taken
