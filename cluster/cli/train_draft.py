"""`kvrelay train-draft`: a draft head for a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cluster.cli.console import ERR, OUT, USAGE, StepReporter, fail, of_files
from cluster.environment import read_environment
from cluster.model_store.store import resolve
from engine.models.errors import ModelError
from router.text.chat_template import ChatTemplate
from router.text.errors import ChatTemplateError, ModelFilesError

if TYPE_CHECKING:
    from training.generate import GenerationProgress
    from training.prompts.mixture import Prompt
    from training.train import TrainingProgress

BUILTIN = "builtin"
_OTHERS = 0.4
"""Learning rate of what is no matrix, of the matrices'."""
_DATA, _LENGTH, _MACHINE = "Data", "Training", "Machine"


def train_draft(
    out: Annotated[
        Path, typer.Option(help="Folder of the head. The same one again: goes on.", show_default=False)
    ],
    model: Annotated[
        str, typer.Option(help="'demo', an imported model, a Hugging Face folder or hub id.")
    ] = "demo",
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="builtin|FILE|DIR",
            help="Prompts: those that come with kvrelay, JSON Lines with 'prompt' or 'messages' (may be "
            "repeated), or a folder of texts to make them of. Default: builtin.",
            show_default=False,
            rich_help_panel=_DATA,
        ),
    ] = None,
    prompts: Annotated[
        int, typer.Option(min=2, help="How many the model answers.", rich_help_panel=_DATA)
    ] = 8192,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Of an answer.", rich_help_panel=_DATA)] = 144,
    max_prompt_tokens: Annotated[
        int, typer.Option(min=1, help="Longer prompts are left out.", rich_help_panel=_DATA)
    ] = 1280,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Answers written at once.", rich_help_panel=_DATA)
    ] = 32,
    quantization: Annotated[
        str,
        typer.Option(
            metavar="none|int8", help="Of the model while it writes; int8 is faster.", rich_help_panel=_DATA
        ),
    ] = "none",
    steps: Annotated[int, typer.Option(min=1, help="Of the optimiser.", rich_help_panel=_LENGTH)] = 2000,
    hours: Annotated[
        float, typer.Option(min=0, help="Train so long instead; 0: --steps say.", rich_help_panel=_LENGTH)
    ] = 0.0,
    batch_tokens: Annotated[
        int, typer.Option(min=1, help="Positions guessed in a step.", rich_help_panel=_LENGTH)
    ] = 2048,
    unroll: Annotated[
        int, typer.Option(min=1, max=16, help="Guesses one behind the other.", rich_help_panel=_LENGTH)
    ] = 5,
    draft_vocab: Annotated[
        int, typer.Option(min=1, help="Tokens that the head can guess.", rich_help_panel=_LENGTH)
    ] = 16384,
    tied: Annotated[
        bool | None,
        typer.Option(
            "--tied/--own-lm-head",
            help="Guess with the LM head of the model, or train one. Default: of the model, if tied.",
            show_default=False,
            rich_help_panel=_LENGTH,
        ),
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option(
            help="Head to begin with. Default: a new one.", show_default=False, rich_help_panel=_LENGTH
        ),
    ] = None,
    copying: Annotated[
        bool | None,
        typer.Option(
            "--copying/--no-copying",
            help="Begin with attention that copies what stood before. Default: where there is no --init.",
            show_default=False,
            rich_help_panel=_LENGTH,
        ),
    ] = None,
    learning_rate: Annotated[
        float,
        typer.Option(
            min=0, help="Of the matrices; less where a head goes on from another.", rich_help_panel=_LENGTH
        ),
    ] = 5e-3,
    measure_every: Annotated[
        int, typer.Option(min=1, help="Steps between measurements.", rich_help_panel=_LENGTH)
    ] = 50,
    seed: Annotated[
        int, typer.Option(min=0, help="Of prompts, draws and weights.", rich_help_panel=_LENGTH)
    ] = 0,
    threads: Annotated[int, typer.Option(min=0, help="0: one for each core.", rich_help_panel=_MACHINE)] = 0,
    device: Annotated[str, typer.Option(help="torch device: cpu, cuda.", rich_help_panel=_MACHINE)] = "cpu",
) -> None:
    """Train an EAGLE-3 head on text that the model writes itself. Stopped, it goes on where it was."""
    # They load torch, for which no other command should wait.
    import torch

    from training.config import TrainingConfig
    from training.generate import GenerationConfig
    from training.job import Job, run_job

    files = tuple(Path(name) for name in data or () if name != BUILTIN)
    if data and BUILTIN in data and files:
        fail(f"--data is either '{BUILTIN}' or files or a folder", USAGE)
    environment = read_environment()
    if threads:
        torch.set_num_threads(threads)
    with StepReporter() as reporter:
        try:
            entry = resolve(model, environment.home, reporter.model_progress)
            reporter.done()
            job = Job(
                name=entry.name,
                data=files,
                folder=out,
                generation=GenerationConfig(
                    entry.path,
                    num_prompts=prompts,
                    max_prompt_tokens=max_prompt_tokens,
                    max_new_tokens=max_new_tokens,
                    batch_size=batch_size,
                    seed=seed,
                    quantization=quantization,
                    device=device,
                ),
                training=TrainingConfig(
                    steps=steps,
                    hours=hours,
                    batch_tokens=batch_tokens,
                    unroll_steps=unroll,
                    matrix_rate=learning_rate,
                    rate=_OTHERS * learning_rate,
                    draft_vocab_size=draft_vocab,
                    tied=tied,
                    copying=copying,
                    measure_every=measure_every,
                    seed=seed,
                    device=device,
                ),
                initial=init,
            )
            run_job(job, _encoder(entry.path), _Shown(reporter, prompts))
        except (ModelError, ModelFilesError, ChatTemplateError, ValueError, RuntimeError) as error:
            fail(str(error))
        except OSError as error:
            fail(of_files(error, environment))
    OUT.print(str(out))


def _encoder(model_dir: Path) -> Callable[[Prompt], Sequence[int]]:
    """Chats to token ids, as the router makes them."""
    import tokenizers

    template = ChatTemplate.load(model_dir)
    path = model_dir / "tokenizer.json"
    try:
        library = tokenizers.Tokenizer.from_file(str(path))
    # The library raises bare Exception for whatever it cannot read.
    except Exception as error:
        raise ModelFilesError(f"{path} cannot be read: {error}") from error

    def encode(prompt: Prompt) -> list[int]:
        said = [{"role": message.role, "content": message.content} for message in prompt.messages]
        ids: list[int] = library.encode(template.render(said), add_special_tokens=False).ids
        return ids

    return encode


class _Shown:
    """Progress as steps, each measurement as a line; implements `training.job.Observer`."""

    def __init__(self, reporter: StepReporter, num_prompts: int) -> None:
        self._reporter = reporter
        self._num_prompts = num_prompts

    def wrote(self, progress: GenerationProgress) -> None:
        rate = progress.new_tokens / max(progress.seconds, 1e-9)
        self._reporter.model_progress("writing answers")
        self._reporter.update(f"{progress.answers} of {self._num_prompts}, {rate:.0f} tokens/s")

    def began(self, answers: int, anchors: int, step: int) -> None:
        goes_on = f", goes on after step {step}" if step else ""
        self._reporter.begin(f"training on {answers} answers ({anchors} tokens){goes_on}")

    def trained(self, progress: TrainingProgress) -> None:
        self._reporter.update(
            f"{progress.done:.0%}, step {progress.step}, pass {progress.epoch:.2f}, "
            f"loss {progress.loss:.2f}, {progress.accuracy:.0%} of first guesses right"
        )
        if progress.acceptance is not None:
            reached = progress.acceptance
            shares = " ".join(f"{share:.2f}" for share in reached.by_position)
            ERR.print(
                f"step {progress.step}: {reached.tokens_per_pass:.2f} tokens a pass greedy "
                f"(guesses accepted: {shares}), {reached.sampled_tokens_per_pass:.2f} at temperature 1"
            )
