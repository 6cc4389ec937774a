"""Virtual environments of their own for what is compared with, or talked to by: never the project's."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rich.console import Console

# First, and alone: an unpinned torch brings gigabytes of CUDA with it.
TORCH = ("install", "torch==2.13.0")
LOG_LINES = 15


class InstallError(RuntimeError):
    """Something could not be installed here; says what failed and where its log is."""


@dataclass(frozen=True, slots=True)
class VirtualEnvironment:
    """A folder with an interpreter and packages.

    Attributes:
        folder: of the environment; its log lies beside it.
    """

    folder: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def log(self) -> Path:
        """What the installation printed."""
        return self.folder.with_name(f"{self.folder.name}.log")

    def tool(self, name: str) -> Path:
        """A command that one of its packages brought."""
        return self.folder / "bin" / name

    def run(
        self,
        command: Sequence[str | Path],
        variables: Mapping[str, str] | None = None,
        output: IO[str] | None = None,
    ) -> None:
        """Runs a command; what it prints goes to the log, or to `output`. Raises InstallError on failure."""
        with self.log.open("a") as log:
            log.write(f"$ {' '.join(map(str, command))}\n")
            log.flush()
            status = subprocess.run(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL, stdout=output or log, stderr=log, check=False,
                env={**os.environ, **(variables or {})},
            ).returncode  # fmt: skip
        if status:
            last = "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_LINES:])
            raise InstallError(
                f"{self.folder.name}: `{command[0]} ...` exited {status}; see {self.log}\n{last}"
            )

    def pip(self, *arguments: str) -> None:
        """Runs pip. Raises InstallError where it fails."""
        self.run([self.python, "-m", "pip", "--disable-pip-version-check", *arguments])

    def version(self, package: str) -> str:
        """Installed version of a package; empty where there is none."""
        code = f"from importlib.metadata import version; print(version({package!r}))"
        found = subprocess.run([self.python, "-c", code], capture_output=True, text=True, check=False)
        return found.stdout.strip()


Step = Callable[[VirtualEnvironment], None]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an environment is made.

    Attributes:
        name: of its folder.
        pip: arguments of pip, call by call.
        then: what follows, for example a build; a change to it needs a change of `edition`.
        edition: counts changes of `then`.
    """

    name: str
    pip: tuple[tuple[str, ...], ...]
    then: Step | None = None
    edition: int = 1

    @property
    def key(self) -> str:
        """Changes with anything that asks for another installation."""
        parts = repr((self.pip, self.edition, sys.version_info[:2]))
        return hashlib.sha256(parts.encode()).hexdigest()[:16]


def provide(recipe: Recipe, cache: Path, console: Console) -> VirtualEnvironment:
    """The environment of a recipe: made where it is missing or outdated, which may take minutes.

    Raises:
        InstallError: a step failed.
    """
    cache.mkdir(parents=True, exist_ok=True)
    environment = VirtualEnvironment(cache / recipe.name)
    stamp = environment.folder / "installed"
    if stamp.exists() and stamp.read_text() == recipe.key:
        return environment
    with console.status(f"{recipe.name}: making a virtual environment") as status:
        environment.log.unlink(missing_ok=True)
        environment.run([sys.executable, "-m", "venv", environment.folder])
        for arguments in recipe.pip:
            status.update(f"{recipe.name}: pip {' '.join(arguments)}")
            environment.pip(*arguments)
        if recipe.then is not None:
            status.update(f"{recipe.name}: {(recipe.then.__doc__ or '').splitlines()[0]}")
            recipe.then(environment)
    stamp.write_text(recipe.key)
    console.print(f"{recipe.name}: installed")
    return environment
