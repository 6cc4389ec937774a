"""Trains an EAGLE-3 head on a target's own answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.models.config import Rope
from training.acceptance import Acceptance, measure
from training.answers import Answer, AnswerShard
from training.checkpoint import TrainingState, load_state, save_state
from training.config import TrainingConfig
from training.dataset import Answers, feature_scale, pack
from training.export import import_head
from training.head import Eagle3Head, HeadConfig
from training.induction import FRESH, TRAINED, add_induction
from training.initial import new_head, with_vocabulary
from training.loss import lm_head_loss
from training.optimizers import HeadOptimizer
from training.precision import product_dtype
from training.target import TargetWeights, feature_layers
from training.teacher import Teacher
from training.unroll import unroll
from training.vocabulary import choose_vocabulary

_SCALE_ANSWERS = 64


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """After a step.

    Attributes:
        step: steps that are done.
        done: the share of the training that is over, at most 1.
        epoch: passes over the answers, with the share of the one that runs.
        loss: of the step's first guesses, nats.
        accuracy: share of its first guesses that are the target's likeliest.
        seconds: of training, by the wall, earlier runs included.
        acceptance: where it was measured after this step.
    """

    step: int
    done: float
    epoch: float
    loss: float
    accuracy: float
    seconds: float
    acceptance: Acceptance | None


class Trainer:
    """One training, from its beginning or from the state in its folder.

    Args:
        target: the target.
        shards: answers; the first shard is held out.
        folder: of the state; exists.
        config: settings.
        initial: folder of an exported head to begin with; None for a new one.

    Raises:
        ValueError: too few shards, a tied head for a target whose LM head is not its embedding, or copying
            asked for where attention heads are too small.
        CheckpointError: the initial head cannot be trained on.
    """

    def __init__(
        self,
        target: TargetWeights,
        shards: Sequence[Path],
        folder: Path,
        config: TrainingConfig,
        initial: Path | None = None,
    ) -> None:
        if len(shards) < 2:
            raise ValueError("training needs two shards of answers at least: the first is held out")
        self.config = config
        self._folder = folder
        self._rope = target.config.ropes[0]
        held_out, *others = (AnswerShard(path) for path in shards)
        self._answers = Answers(others)
        apart = Answers([held_out])
        self.held_out: list[Answer] = [apart.read(i) for i in range(min(config.held_out, len(apart)))]
        tied = target.lends_lm_head(config.tied)
        state = load_state(folder)
        if state is not None:
            self.token_ids = state.token_ids
            layers = feature_layers(target.config.num_layers)
            self.head = Eagle3Head(HeadConfig.like(target.config, len(layers), len(state.token_ids), tied))
            self.head.load_state_dict(state.head)
            if state.rope_theta:
                self.head.turn(Rope(self.head.config.rope.dim, state.rope_theta))
        else:
            scale = feature_scale(self._answers, _SCALE_ANSWERS)
            texts = (text for shard in others for text in shard.answer_token_ids())
            vocab, eos = target.config.vocab_size, target.config.eos_token_ids
            self.token_ids = choose_vocabulary(texts, vocab, min(config.draft_vocab_size, vocab), eos)
            if initial is not None:
                head, known = import_head(initial, target, scale)
                self.head = with_vocabulary(head, known, self.token_ids, target, tied)
            else:
                self.head = new_head(target, self.token_ids, scale, config.seed, tied)
            if config.copies(initial is None):
                amount = FRESH if initial is None else TRAINED
                copies = add_induction(self.head, self.token_ids, target, self._answers, amount)
                if config.copying and not copies:
                    raise ValueError("--copying: the model's attention heads have too few dimensions for it")
        self.head.to(config.device)
        self._teacher = Teacher(target, self.token_ids, config.device)
        self._optimizer = HeadOptimizer(self.head, config)
        self.step = state.step if state else 0
        self._epoch = state.epoch if state else 0
        self._cursor = state.cursor if state else 0
        self._seconds = state.seconds if state else 0.0
        self._tokens = state.tokens if state else 0
        if state is not None:
            self._optimizer.load(state.optimizer)

    @property
    def num_answers(self) -> int:
        """Answers that are trained on."""
        return len(self._answers)

    @property
    def num_anchors(self) -> int:
        """Positions that are guessed in one pass over the answers."""
        return self._answers.num_anchors

    @property
    def seconds(self) -> float:
        """Of training so far, by the wall."""
        return self._seconds

    @property
    def is_done(self) -> bool:
        """Whether the training is over."""
        return self._done >= 1.0

    def measure(self) -> Acceptance:
        """Acceptance on the held-out answers."""
        return measure(self.head, self._teacher, self.held_out, self.config.num_guesses)

    def run(self, report: Callable[[TrainingProgress], None], save_every_s: float = 60.0) -> Acceptance:
        """Trains to the end, keeping its state about every `save_every_s` seconds and at the end.

        Returns what is reached then.
        """
        saved = time.monotonic()
        acceptance: Acceptance | None = None
        while not self.is_done:
            batches = self._answers.batches(self.config.seed, self._epoch, self.config.batch_tokens)
            if self._cursor >= len(batches):
                self._epoch, self._cursor = self._epoch + 1, 0
                continue
            began = time.monotonic()
            loss, accuracy = self._train(batches[self._cursor])
            self._seconds += time.monotonic() - began
            self.step += 1
            self._cursor += 1
            last = self.is_done
            acceptance = self.measure() if last or self.step % self.config.measure_every == 0 else None
            if last or time.monotonic() - saved > save_every_s:
                self.save()
                saved = time.monotonic()
            epoch = self._epoch + self._cursor / len(batches)
            report(
                TrainingProgress(
                    self.step, min(1.0, self._done), epoch, loss, accuracy, self._seconds, acceptance
                )
            )
        return acceptance or self.measure()

    @property
    def _done(self) -> float:
        return self.config.done(self.step, self._seconds)

    def save(self) -> None:
        """Keeps the state."""
        save_state(
            self._folder,
            TrainingState(
                self.step,
                self._epoch,
                self._cursor,
                self.head.state_dict(),
                self._optimizer.state(),
                self.token_ids,
                self._seconds,
                self._tokens,
                self.head.config.rope.theta if self.head.config.rope != self._rope else 0.0,
            ),
        )

    def _train(self, numbers: Sequence[int]) -> tuple[float, float]:
        """One step; returns loss and accuracy of the first guesses."""
        config, head, device = self.config, self.head, self.config.device
        training = pack([self._answers.read(number) for number in numbers], device)
        probabilities = self._teacher.probabilities(training)
        count = sum(last - first + 1 for first, last in training.batch.anchors)
        # Depends on the step alone, so that a run that goes on chooses as one that never stopped.
        generator = torch.Generator().manual_seed(config.seed * 1_000_003 + self.step)
        kept = torch.rand(count, generator=generator).to(device) < config.chain_share
        shown = (0.0, 0.0)
        loss = torch.zeros((), device=device)
        dtype = product_dtype(device)
        with torch.autocast(torch.device(device).type, dtype, enabled=dtype != torch.float32):
            steps = unroll(head, self._teacher.embedding, training.batch, config.unroll_steps, kept)
            for step, found in enumerate(steps):
                share = config.chain_share if step else 1.0
                weight = config.step_decay**step / (share * count)
                weights = torch.full((len(found.places),), weight, device=device)
                rows = training.anchor_of.index_select(0, found.places)
                part, guesses, _ = lm_head_loss(
                    head.norm(found.hidden).float(), head.lm_head.weight, probabilities, rows, weights
                )
                loss = loss + part
                if step == 0:
                    best = probabilities.argmax(dim=1).index_select(0, rows)
                    shown = (float(part.detach()), float((guesses == best).float().mean()))
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step(config.rate_at(self.step, self._seconds))
        self._tokens += count
        return shown
