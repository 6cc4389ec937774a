"""How a head is trained."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """Settings of one training.

    Attributes:
        steps: optimiser steps. A run that goes on from a checkpoint may be given more or fewer.
        batch_tokens: guessed positions of one step, about.
        unroll_steps: steps of the training-time test.
        chain_share: the share of chains that go on behind its first step, (0, 1].
        step_decay: weight of each of its steps relative to the one before.
        matrix_rate: learning rate of the matrices, which Muon updates (Jordan et al., 2024).
        rate: learning rate of LM head and norms, which AdamW updates.
        weight_decay: of the matrices.
        clip: largest norm of the gradient.
        warm_up: share of the steps in which the learning rate rises.
        cool_down: share of the steps, at the end, in which it falls to 0.
        draft_vocab_size: tokens that the head can guess.
        measure_every: steps between two measurements of acceptance.
        held_out: answers to measure on.
        num_guesses: guesses of a chain when acceptance is measured.
        seed: of initial weights and of all orders and choices.
        device: torch device.
    """

    steps: int
    batch_tokens: int = 2048
    unroll_steps: int = 5
    chain_share: float = 0.5
    step_decay: float = 0.8
    matrix_rate: float = 5e-3
    rate: float = 2e-3
    weight_decay: float = 0.01
    clip: float = 0.5
    warm_up: float = 0.02
    cool_down: float = 0.35
    draft_vocab_size: int = 8192
    measure_every: int = 50
    held_out: int = 64
    num_guesses: int = 5
    seed: int = 0
    device: str = "cpu"

    def rate_at(self, step: int) -> float:
        """Factor on the learning rates at a step, from 0 on: rises, stays, falls."""
        rising = (step + 1) / max(self.warm_up * self.steps, 1.0)
        falling = (self.steps - step) / max(self.cool_down * self.steps, 1.0)
        return max(0.0, min(1.0, rising, falling))
