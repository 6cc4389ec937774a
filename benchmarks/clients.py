"""Real clients, unchanged, against a real deployment.

    python benchmarks/clients.py [--only openai,llm] [--model demo]

Starts one deployment as `kvrelay up` does, installs each client into a virtual environment of its own, and
runs what its users do with it. Exits 1 where a check fails or a client could not be installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.bars import Bars
from benchmarks.client_checks.catalogue import CLIENTS, Client
from benchmarks.client_checks.checks import Target
from benchmarks.environments import InstallError, VirtualEnvironment, provide
from benchmarks.peers.process import ROOT
from cluster.environment import read_environment
from cluster.model_store.progress import silent
from cluster.model_store.store import resolve
from tests.support.live_cluster import live_cluster

CLIENT_LIMIT_S = 1800.0
# The demo model's template does not say how it writes tool calls; what is required of it, it writes anyway.
SETTINGS = {"router": {"tool_parser": "hermes"}}
LOG_LINES = 15
# Clients that would talk to anyone else are told not to; none of this changes what they send here.
QUIET = {
    "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "DO_NOT_TRACK": "1", "NO_COLOR": "1",
    "LANGSMITH_TRACING": "false", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "TOKENIZERS_PARALLELISM": "false",
    "OPENAI_API_KEY": "none",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a client's runner said.

    Attributes:
        checks: their names, each with its problem; an empty one means that it holds.
        crash: why the runner ended early; empty otherwise.
    """

    checks: dict[str, str]
    crash: str


def run_client(client: Client, environment: VirtualEnvironment, target: Target) -> Outcome:
    """Runs all checks of one client in its own environment."""
    log = environment.log.with_suffix(".checks.log")
    with log.open("w") as errors:
        try:
            done = subprocess.run(
                [
                    environment.python, "-m", f"benchmarks.client_checks.{client.module}",
                    json.dumps(asdict(target)),
                ],
                cwd=ROOT, env={**os.environ, **QUIET, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=errors, text=True, timeout=CLIENT_LIMIT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Outcome({}, f"not done after {CLIENT_LIMIT_S:.0f} s; see {log}")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    checks = {entry["check"]: entry["problem"] for entry in found}
    if done.returncode or not checks:
        last = "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])
        return Outcome(checks, f"its runner exited {done.returncode}; see {log}\n{last}")
    return Outcome(checks, "")


def _try(name: str, cache: Path, target: Target, console: Console, table: Table, bars: Bars) -> None:
    """Installs and runs one client, and adds its row."""
    client = CLIENTS[name]
    try:
        environment = provide(client.recipe, cache, console)
    except InstallError as error:
        table.add_row(name, "", "", "[red]not installed[/red]")
        bars.require(False, f"{name} could not be installed: {error}")
        return
    with console.status(f"{name}: checking"):
        outcome = run_client(client, environment, target)
    bars.require(not outcome.crash, f"{name}: {outcome.crash}")
    for check, problem in outcome.checks.items():
        bars.require(not problem, f"{name}, {check}: {problem}")
    good = [check for check, problem in outcome.checks.items() if not problem]
    fine = not outcome.crash and len(good) == len(outcome.checks)
    verdict = "[green]ok[/green]" if fine else f"[red]{len(outcome.checks) - len(good)} failed[/red]"
    if outcome.crash:
        verdict = "[red]crashed[/red]"
    count = f"{len(good)} of {len(outcome.checks)}"
    table.add_row(name, environment.version(client.package), f"{count}: {', '.join(good)}", verdict)
    console.print(f"{name}: {count} checks hold")


def main(
    only: Annotated[str, typer.Option(help=f"Clients to run, of {','.join(CLIENTS)}.")] = ",".join(CLIENTS),
    model: Annotated[str, typer.Option(help="Model name, folder or hub id.")] = "demo",
    cache: Annotated[Path | None, typer.Option(help="For the clients' environments.")] = None,
) -> None:
    """Prints which clients work. Exits 1 where one does not."""
    console, bars = Console(), Bars()
    names = only.split(",")
    if unknown := {*names} - {*CLIENTS}:
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: there are {', '.join(CLIENTS)}")
    environment = read_environment()
    folder = resolve(model, environment.home, silent).path
    place = (cache or environment.home / "benchmarks").absolute()
    table = Table("client", "version", "checks that hold", "verdict", title="Clients")
    with tempfile.TemporaryDirectory() as files:
        (deployment := Path(files) / "deployment").mkdir()
        with live_cluster(deployment, {"model": str(folder), **SETTINGS}) as cluster:
            for name in names:
                (own := Path(files) / name).mkdir()
                state = cluster.state
                target = Target(
                    http_url=state.http_url, grpc_address=state.grpc_address, model=state.served_name,
                    model_dir=str(folder), folder=str(own),
                )  # fmt: skip
                _try(name, place, target, console, table, bars)
    console.print(table)
    bars.exit()


if __name__ == "__main__":
    typer.run(main)
