"""How a head is trained."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """Settings of one training.

    Attributes:
        steps: optimiser steps after which the training ends. A run that goes on from a checkpoint may be
            given more or fewer.
        hours: by the clock, earlier runs included, after which it ends instead; 0 leaves it to `steps`.
        batch_tokens: guessed positions of one step, about.
        unroll_steps: steps of the training-time test.
        chain_share: the share of chains that go on behind its first step, (0, 1].
        step_decay: weight of each of its steps relative to the one before.
        matrix_rate: learning rate of the matrices, which Muon updates (Jordan et al., 2024).
        rate: learning rate of LM head and norms, which AdamW updates.
        weight_decay: of the matrices.
        clip: largest norm of the gradient.
        warm_up: steps in which the learning rates rise.
        cool_down: share of the training, at its end, in which they fall to 0.
        draft_vocab_size: tokens that the head can guess.
        tied: whether its LM head is the target's, not trained and not stored; None: where that is the
            target's embedding.
        copying: whether it begins with attention that copies (`training.induction`); None: where it is new.
        measure_every: steps between two measurements of acceptance.
        held_out: answers to measure on.
        num_guesses: guesses of a chain when acceptance is measured.
        seed: of initial weights and of all orders and choices.
        device: torch device.
    """

    steps: int
    hours: float = 0.0
    batch_tokens: int = 2048
    unroll_steps: int = 5
    chain_share: float = 0.25
    step_decay: float = 0.8
    matrix_rate: float = 5e-3
    rate: float = 2e-3
    weight_decay: float = 0.01
    clip: float = 0.5
    warm_up: int = 15
    cool_down: float = 0.35
    draft_vocab_size: int = 16384
    tied: bool | None = None
    copying: bool | None = None
    measure_every: int = 50
    held_out: int = 64
    num_guesses: int = 5
    seed: int = 0
    device: str = "cpu"

    def copies(self, is_new: bool) -> bool:
        """Whether a head begins with attention that copies."""
        return is_new if self.copying is None else self.copying

    def done(self, step: int, seconds: float) -> float:
        """The share of the training that is over after `step` steps and so much time; 1 and more is all."""
        return seconds / (3600 * self.hours) if self.hours else step / self.steps

    def rate_at(self, step: int, seconds: float) -> float:
        """Factor on the learning rates of step `step`, from 0 on: rises, stays, falls."""
        rising = (step + 1) / (self.warm_up + 1)
        falling = (1.0 - self.done(step, seconds)) / self.cool_down if self.cool_down else 1.0
        return max(0.0, min(1.0, rising, falling))
