"""From a model to a head: answers, training, export. What `kvrelay train-draft` runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from training.acceptance import Acceptance
from training.card import CardFacts, model_card
from training.config import TrainingConfig
from training.export import export_head
from training.files import PromptFileError, read_prompts
from training.generate import GenerationConfig, GenerationProgress, PromptEncoder, generate
from training.prompts.mixture import Prompt, builtin_prompts
from training.prompts.texts import read_texts, text_prompts
from training.target import read_target
from training.train import Trainer, TrainingProgress

WORK_FOLDER = "training"
"""Folder beside the head that holds answers and the state of its training; only going on needs it."""

_BUILTIN_DATA = (
    "Prompts are made from templates that come with kvrelay (questions and instructions, functions to "
    "complete, sums and word problems, news to summarise) and from Python's sources and manual (PSF licence)."
)
_TEXT_DATA = "Passages to summarise, topics to ask about and functions to complete of a folder of texts."


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be done.

    Attributes:
        name: what the target is called in the model card.
        data: files of prompts, or one folder of texts; empty for prompts that come with kvrelay.
        folder: of the head.
        generation: how answers are written; its model is the target.
        training: how the head is trained.
        initial: folder of a head to begin with; None for a new one.
    """

    name: str
    data: tuple[Path, ...]
    folder: Path
    generation: GenerationConfig
    training: TrainingConfig
    initial: Path | None = None


class Observer(Protocol):
    """Is told how a job goes."""

    def wrote(self, progress: GenerationProgress) -> None:
        """The target wrote answers."""
        ...

    def began(self, answers: int, anchors: int, step: int) -> None:
        """Training begins, or goes on after `step`, with so many answers and positions to guess."""
        ...

    def trained(self, progress: TrainingProgress) -> None:
        """A step was done."""
        ...


def run_job(job: Job, encode: PromptEncoder, observer: Observer) -> Acceptance:
    """Does a job, or what is left of it; the head is exported at each measurement and at the end.

    Args:
        job: what is to be done.
        encode: makes token ids of prompts.
        observer: is told.

    Returns:
        What the head reaches.

    Raises:
        ModelError: the target or the initial head cannot be used.
        PromptFileError: a file of prompts or a folder of texts cannot be used.
        ValueError: too few prompts, or a draft vocabulary that is none.
        RuntimeError: the target gave no numbers.
    """
    work = job.folder / WORK_FOLDER
    work.mkdir(parents=True, exist_ok=True)
    model_dir = job.generation.model_dir
    target = read_target(model_dir)
    # Found out now rather than after the answers.
    target.lends_lm_head(job.training.tied)
    shards = generate(job.generation, _prompts(job), encode, work, observer.wrote)
    trainer = Trainer(target, shards, work, job.training, job.initial)
    observer.began(trainer.num_answers, trainer.num_anchors, trainer.step)

    def export(acceptance: Acceptance) -> None:
        export_head(trainer.head, trainer.token_ids, model_dir, job.folder)
        facts = _facts(job, trainer)
        (job.folder / "README.md").write_text(model_card(facts, job.training, acceptance))

    def report(progress: TrainingProgress) -> None:
        if progress.acceptance is not None:
            export(progress.acceptance)
        observer.trained(progress)

    if trainer.is_done:
        acceptance = trainer.measure()
        export(acceptance)
        return acceptance
    return trainer.run(report)


def _prompts(job: Job) -> Iterator[Prompt]:
    if not job.data:
        return builtin_prompts(job.generation.seed)
    if not any(path.is_dir() for path in job.data):
        return read_prompts(job.data)
    if len(job.data) > 1:
        raise PromptFileError("data are files of prompts or one folder of texts")
    return text_prompts(read_texts(job.data[0]), job.generation.seed)


def _described(job: Job) -> str:
    if not job.data:
        return _BUILTIN_DATA
    if job.data[0].is_dir():
        return f"{_TEXT_DATA} {_BUILTIN_DATA}"
    return f"Prompts of {', '.join(path.name for path in job.data)}."


def _facts(job: Job, trainer: Trainer) -> CardFacts:
    generation = job.generation
    quantized = "" if generation.quantization == "none" else f", {generation.quantization}"
    return CardFacts(
        target=job.name,
        data=_described(job),
        answers=trainer.num_answers,
        anchors=trainer.num_anchors,
        held_out=len(trainer.held_out),
        max_new_tokens=generation.max_new_tokens,
        engine=f"{generation.dtype}{quantized}",
        initial=job.initial.name if job.initial else "",
        draft_vocab_size=len(trainer.token_ids),
        tied=trainer.head.config.tied,
        step=trainer.step,
        seconds=trainer.seconds,
    )
