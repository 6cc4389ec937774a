"""How a client's runner is told where the deployment is, and how it says what worked.

Only the standard library: this is imported in the environment of every client.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

COMMAND_LIMIT_S = 900.0


@dataclass(frozen=True, slots=True)
class Target:
    """A deployment to talk to.

    Attributes:
        http_url: of the OpenAI-compatible door, without `/v1`.
        grpc_address: host and port of the gRPC door.
        model: name that it serves.
        model_dir: the model's folder, for clients that tokenize.
        folder: an empty one for the client's own files.
    """

    http_url: str
    grpc_address: str
    model: str
    model_dir: str
    folder: str

    @property
    def openai_url(self) -> str:
        """Base URL as OpenAI clients want it."""
        return f"{self.http_url}/v1"

    @classmethod
    def from_arguments(cls) -> Target:
        """The one that the first argument describes, in JSON."""
        return cls(**json.loads(sys.argv[1]))


class Checks:
    """Runs checks one after the other and reports each on what was stdout; from then on stdout is stderr."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """A check: it holds where its block raises nothing."""
        problem = ""
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            problem = f"{type(error).__name__}: {error}"[:600]
        self._answers.write(json.dumps({"check": name, "problem": problem}) + "\n")
        self._answers.flush()


def expect(holds: object, what: object) -> None:
    """Raises AssertionError with what was found instead."""
    if not holds:
        raise AssertionError(f"found {what!r}")


def command(arguments: Sequence[str], variables: Mapping[str, str] | None = None, text_in: str = "") -> str:
    """Runs a tool of the client's own environment; returns its stdout. Raises RuntimeError where it fails."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    done = subprocess.run(
        arguments, env={**os.environ, "PATH": path, **(variables or {})}, input=text_in,
        capture_output=True, text=True, timeout=COMMAND_LIMIT_S, check=False,
    )  # fmt: skip
    print(f"$ {' '.join(arguments)}\n{done.stdout}\n{done.stderr}", file=sys.stderr)
    if done.returncode:
        last = (done.stderr or done.stdout)[-500:]
        raise RuntimeError(f"`{arguments[0]}` exited {done.returncode}: {last}")
    return done.stdout
