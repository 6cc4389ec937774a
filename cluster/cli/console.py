"""What commands print: answers to standard output, everything else to standard error."""

from __future__ import annotations

import time
from typing import NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.status import Status

from cluster.environment import Environment

OUT = Console(highlight=False, soft_wrap=True)
ERR = Console(stderr=True, highlight=False, soft_wrap=True)

FAILURE, USAGE = 1, 2
"""Exit codes: something went wrong; the command was called wrongly."""


def fail(message: str, code: int = FAILURE) -> NoReturn:
    """Prints the message as an error and ends the command."""
    ERR.print("[bold red]error:[/] " + escape(message))
    raise typer.Exit(code)


def of_files(error: OSError, environment: Environment) -> str:
    """What went wrong with which file: the disk is full, the folder cannot be written."""
    name = error.filename2 or error.filename
    where = f": {name}" if name else ""
    return f"{error.strerror or error}{where} (KVRELAY_HOME is {environment.home})"


class StepReporter:
    """Shows one step after another with its time: a spinner on a terminal, plain lines elsewhere.

    A context manager; leaving it ends the step that runs.
    """

    def __init__(self) -> None:
        self._step = ""
        self._began = 0.0
        self._status: Status | None = None

    def __enter__(self) -> StepReporter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._finish(done=kind is None)

    def begin(self, step: str) -> None:
        """A step begins; the one before is done."""
        self._finish(done=True)
        self._step = step
        self._began = time.monotonic()
        if ERR.is_terminal:
            self._status = ERR.status(escape(step))
            self._status.start()
        else:
            ERR.print(f"{escape(step)} ...")

    def update(self, detail: str) -> None:
        """How far the step is. Only on a terminal: elsewhere it would fill logs."""
        if self._status is not None:
            self._status.update(f"{escape(self._step)}: {escape(detail)}")

    def note(self, text: str) -> None:
        """Something worth knowing, at any time."""
        ERR.print(f"[yellow]note:[/] {escape(text)}")

    def done(self) -> None:
        """The running step is done."""
        self._finish(done=True)

    def failed(self) -> None:
        """The running step has failed."""
        self._finish(done=False)

    def model_progress(self, message: str, fraction: float | None = None) -> None:
        """Progress of the model store: each of its stages is a step."""
        if message != self._step:
            self.begin(message)
        if fraction is not None:
            self.update(f"{fraction:.0%}")

    def _finish(self, done: bool) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
        if self._step:
            mark = "[green]✓[/]" if done else "[red]✗[/]"
            ERR.print(f"{mark} {escape(self._step)} [dim]{time.monotonic() - self._began:.1f} s[/]")
        self._step = ""
