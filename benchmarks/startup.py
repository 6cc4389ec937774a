"""From the command to a served model: `kvrelay up`, warm, several times.

    python benchmarks/startup.py [--model demo] [--rounds 5]

Warm means that the model is in the store and that its files and the libraries are in the page cache: a first
start, not counted, sees to both. Ready is when `/ready` says so, which is after the command has printed where
everything is. Exits 1 where the median misses the bar.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import httpx
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.bars import Bars, Spread
from cluster.environment import read_environment
from tests.support.live_cluster import STOP_LIMIT_S

BAR_S = 20.0
NAME = "startup-benchmark"
LIMIT_S = 300.0
_STEP = re.compile(r"✓ (.+?)(?: at \S+| \(.*\))? ([0-9.]+) s$")
_ENDPOINT = re.compile(r"OpenAI endpoint\s+(http://\S+)/v1")


@contextmanager
def _up(model: str) -> Iterator[subprocess.Popen[str]]:
    environment = {
        **os.environ,
        "NO_COLOR": "1",
        "COLUMNS": "200",
        "PYTHONPATH": read_environment().import_path,
    }
    command = [sys.executable, "-m", "cluster.cli", "up", "--model", model, "--name", NAME]
    process = subprocess.Popen(
        [*command, "--http-port", "0", "--grpc-port", "0"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    # A start that hangs is ended, and read as one that failed.
    limit = threading.Timer(LIMIT_S, process.terminate)
    limit.start()
    try:
        yield process
    finally:
        limit.cancel()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=STOP_LIMIT_S)


def measure(model: str) -> tuple[float, dict[str, float]]:
    """One start: seconds until ready, and seconds of each step as the command shows them."""
    began = time.monotonic()
    steps: dict[str, float] = {}
    shown = ""
    with _up(model) as process:
        assert process.stdout is not None
        for line in process.stdout:
            shown += line
            if (step := _STEP.search(line)) is not None:
                steps[step[1]] = float(step[2])
            if (endpoint := _ENDPOINT.search(line)) is not None:
                _await_ready(endpoint[1])
                return time.monotonic() - began, steps
    raise SystemExit(f"the deployment did not start:\n{shown}")


def _await_ready(url: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while httpx.get(f"{url}/ready").status_code != 200:
        if time.monotonic() > deadline:
            raise SystemExit(f"{url} is not ready after {LIMIT_S:g} s")
        time.sleep(0.02)


def main(
    model: Annotated[str, typer.Option(help="Model name, folder or hub id.")] = "demo",
    rounds: Annotated[int, typer.Option(min=1, help="Starts that are measured.")] = 5,
) -> None:
    """Measures warm starts. Exits 1 where the median misses the bar."""
    console, bars = Console(), Bars()
    measure(model)
    found = [measure(model) for _ in range(rounds)]
    total = Spread.of([seconds for seconds, _ in found])
    table = Table(
        "step", "s", title=rf"Warm start of {escape(model)}, median \[least .. greatest] of {rounds}"
    )
    for name in found[0][1]:
        table.add_row(name, Spread.of([steps.get(name, 0.0) for _, steps in found]).text())
    named = [sum(steps.values()) for _, steps in found]
    rest = Spread.of([seconds - part for (seconds, _), part in zip(found, named, strict=True)])
    table.add_row("the command itself", rest.text())
    table.add_row("ready", total.text())
    console.print(table)
    bars.require(total.median <= BAR_S, f"ready within {BAR_S:g} s: {total.median:.1f}")
    bars.exit()


if __name__ == "__main__":
    typer.run(main)
