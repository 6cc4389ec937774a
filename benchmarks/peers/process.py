"""A runner's process as the comparison sees it: started once, asked many times, halted in between."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.protocol import Run

ROOT = Path(__file__).resolve().parents[2]
START_LIMIT_S = 600.0
RUN_LIMIT_S = 600.0
LOG_LINES = 15


class RunnerError(RuntimeError):
    """A runner ended or hung; carries the end of its log."""


@dataclass(frozen=True, slots=True)
class Command:
    """How a runner is started.

    Attributes:
        name: of the engine, as tables show it.
        python: interpreter of its environment.
        module: file name in benchmarks/peers.
        arguments: of the module.
        variables: beyond this process's environment.
    """

    name: str
    python: Path
    module: str
    arguments: tuple[str, ...]
    variables: Mapping[str, str]


class Runner:
    """One engine, loaded. While it is not its turn it is stopped by signal, so that it cannot disturb."""

    def __init__(self, command: Command, log: Path) -> None:
        """Starts it; `wait_ready` must follow."""
        self.name = command.name
        self.version = ""
        self._log = log
        # The checkout alone: what it needs beyond that is in its environment.
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "client")])}
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [command.python, "-m", f"benchmarks.peers.{command.module}", *command.arguments],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                cwd=ROOT, env={**variables, **command.variables}, start_new_session=True,
            )  # fmt: skip
        self._unread = b""

    def wait_ready(self) -> None:
        """Returns once the model is loaded. Raises RunnerError."""
        self.version = str(self._answer(START_LIMIT_S)["version"])
        self._signal(signal.SIGSTOP)

    def run(self, prompts: Sequence[Sequence[int]], output_tokens: int) -> Run:
        """Lets it run one batch. Raises RunnerError, also where it gave another number of tokens."""
        command = json.dumps({"prompts": prompts, "output_tokens": output_tokens}) + "\n"
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        self._process.stdin.write(command.encode())
        self._process.stdin.flush()
        run = Run(**self._answer(RUN_LIMIT_S))
        self._signal(signal.SIGSTOP)
        return run

    def close(self) -> None:
        """Ends it."""
        self._signal(signal.SIGKILL)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # a command that it did not live to read
                pipe.close()
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def _answer(self, limit_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        deadline = time.monotonic() + limit_s
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            readable, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
            found = os.read(pipe, 1 << 20) if readable else b""
            if not found:
                reason = "ended" if readable else f"was silent for {limit_s:.0f} s"
                last = "\n".join(self._log.read_text(errors="replace").splitlines()[-LOG_LINES:])
                raise RunnerError(f"{self.name} {reason}; see {self._log}\n{last}")
            self._unread += found
        line, self._unread = self._unread.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer
