"""The engine beside its peers on this machine, in one run: ratios, and bars that they must reach.

    python benchmarks/engine.py [--peers openvino,llamacpp,vllm] [--cluster] [--json FILE]

Greedy, without speculation, 128 tokens in and 128 out at batch 1, 4 and 16, and a prefill of 1,024 tokens, in
fp32 and int8. Peers are installed on request, each in a virtual environment of its own. Exits 1 where a bar
is missed; a bar whose peer was not asked for is said to be not measured. The first run takes long: llama.cpp
is built, vLLM compiles.
"""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from benchmarks.bars import Bars
from benchmarks.cluster_overhead import cluster_table, cluster_verdicts, measure_cluster
from benchmarks.engine_bars import (
    OWN,
    Verdict,
    bars_table,
    memory_verdict,
    perplexity_verdict,
    speed_table,
    speed_verdicts,
)
from benchmarks.environments import InstallError
from benchmarks.peers.catalogue import PEERS, QUANTIZATION, Place, memory, own
from benchmarks.peers.process import Command, RunnerError
from benchmarks.perplexity import MAX_INCREASE, perplexity, text_token_ids
from benchmarks.rounds import Measurements, Sample, measure, started
from benchmarks.weights import bytes_read_per_token
from cluster.environment import read_environment
from cluster.model_store.progress import silent
from cluster.model_store.store import resolve
from engine.models.loader import load_model

WIDTH = 150  # of every column, also into a file


def _numbers(sample: Sample) -> dict[str, object]:
    return {name: value for name, value in asdict(sample).items() if name != "token_ids"}


def _report(found: Measurements, verdicts: list[Verdict], place: Place) -> dict[str, object]:
    """Everything that was measured, for other programs."""
    samples = {
        engine: {
            workload.name: [_numbers(sample) for sample in rounds] for workload, rounds in by_workload.items()
        }
        for engine, by_workload in found.samples.items()
    }
    return {
        "machine": {"processor": platform.processor() or platform.machine(), "threads": place.threads},
        "versions": found.versions,
        "bandwidth_bytes_per_s": found.bandwidth,
        "samples": samples,
        "bars": [asdict(verdict) for verdict in verdicts],
    }


def _perplexities(place: Place) -> list[float]:
    """Of this engine in fp32 and int8, on the project's own texts."""
    pieces = text_token_ids(place.model_dir)
    return [perplexity(load_model(place.model_dir, quantization=QUANTIZATION[kind]), pieces) for kind in OWN]


def _compare(place: Place, names: list[str], precisions: list[str], rounds: int) -> Measurements:
    """Installs, loads and measures."""
    commands: list[Command] = [own(place, precision) for precision in precisions]
    for name in names:
        commands += [
            command
            for command in PEERS[name](place)
            if ("fp32" in precisions if command.name.endswith(("fp32", "F32")) else "int8" in precisions)
        ]
    with started([memory(place), *commands], place.cache / "logs", place.console) as (reader, *runners):
        return measure(runners, reader, rounds)


def main(
    peers: Annotated[str, typer.Option(help=f"To compare with, of {','.join(PEERS)}.")] = "",
    model: Annotated[str, typer.Option(help="Model name, folder or hub id.")] = "demo",
    precisions: Annotated[str, typer.Option(help="Of fp32 and int8.")] = "fp32,int8",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that count.")] = 5,
    threads: Annotated[int, typer.Option(min=0, help="Of every engine; 0 takes all cores.")] = 0,
    cluster: Annotated[bool, typer.Option(help="Also measure the whole cluster against the engine.")] = False,
    cache: Annotated[Path | None, typer.Option(help="For environments and converted models.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all samples there.")] = None,
) -> None:
    """Prints how the engine compares. Exits 1 where a bar is missed, 2 where a peer cannot be had or run."""
    console, bars = Console(width=WIDTH), Bars()
    names = [name for name in peers.split(",") if name]
    kinds = precisions.split(",")
    if unknown := ({*names} - {*PEERS}) | ({*kinds} - {*OWN}):
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: there are {', '.join((*PEERS, *OWN))}")
    environment = read_environment()
    place = Place(
        model_dir=resolve(model, environment.home, silent).path,
        cache=(cache or environment.home / "benchmarks").absolute(),
        threads=threads or len(os.sched_getaffinity(0)),
        console=console,
    )
    try:
        found = _compare(place, names, kinds, rounds)
        verdicts = speed_verdicts(found)
        tables = [speed_table(found)]
        if "fp32" in kinds:
            verdicts.append(memory_verdict(found, bytes_read_per_token(place.model_dir)))
        if {*kinds} == {*OWN}:
            with console.status("perplexity"):
                fp32, int8 = _perplexities(place)
            verdicts.append(perplexity_verdict(fp32, int8, MAX_INCREASE))
        if cluster:
            logs = place.cache / "logs"
            pairs = measure_cluster(str(place.model_dir), own(place, "fp32"), {}, logs, console, rounds)
            tables.append(cluster_table(pairs))
            verdicts += cluster_verdicts(pairs)
    except (InstallError, RunnerError) as error:
        console.print(f"[red]error[/red]: {escape(str(error))}", markup=True, highlight=False)
        raise typer.Exit(2) from error
    for table in (*tables, bars_table(verdicts, bars)):
        console.print(table)
    if json_file is not None:
        json_file.write_text(json.dumps(_report(found, verdicts, place), indent=1))
    bars.exit()


if __name__ == "__main__":
    typer.run(main)
