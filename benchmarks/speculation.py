"""Speculative decoding: tokens a pass and speed of each method, and the adaptive operating point under load.

    python benchmarks/speculation.py --prompts DIR [--parts methods,pair,...] [--limit N] [--few N]

All variants have one model in memory and an engine each, and take turns of a few tokens on the same requests;
what counts are ratios within such a run. Only steps in which the whole batch decodes are counted. Exits 1
where a bar is missed. Intervals are the central 95 % of what resampled runs give.

`methods`: at batch 1, greedily and at temperature 1, on MT-bench, HumanEval and summarising: tokens per
pass of the target, tokens a second beside none, and how often drafts were right by position. `rules`: what
both rules of verification accept at temperature 1. `formula`: tokens of a round by the length of the chain,
beside what independent drafts would give. `load`: at batch 1, 4, 16 and 32 the adaptive operating point
beside none and each fixed number of drafts. `pair`: Qwen2.5-Coder 0.5B drafts for 1.5B on HumanEval; the
first time 1.6 GB are downloaded, and become 8 GB in the model store.

The first of the precisions serves all parts, further ones `methods` alone, to be reported beside it.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

import benchmarks.as_worker  # noqa: F401 - before torch is imported
from benchmarks.bars import Bars
from benchmarks.engine_bars import Verdict, bars_table
from benchmarks.environments import InstallError
from benchmarks.packages import provide
from benchmarks.speculating.bench import Loaded
from benchmarks.speculating.formula import run_formula
from benchmarks.speculating.load import Load, run_load
from benchmarks.speculating.methods import run_methods
from benchmarks.speculating.pair import Pair, run_pair
from benchmarks.speculating.part import Outcome, Place
from benchmarks.speculating.rules import run_rules
from benchmarks.speculating.variants import ways_to_draft
from benchmarks.speculating.workloads import SETS, prompts_of
from cluster.environment import read_environment
from cluster.model_store.heads import known
from cluster.model_store.progress import silent
from cluster.model_store.store import resolve
from engine.quantization.registry import NAMES, PLAIN
from engine.speculation.config import SpeculationConfig

PARTS = ("methods", "rules", "formula", "load", "pair")
BATCHES = (1, 4, 16, 32)
PAIR = ("qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b")
WIDTH = 165  # of every column, also into a file


def _chosen(given: str, known_names: tuple[str, ...], what: str) -> list[str]:
    chosen = [name for name in given.split(",") if name]
    if unknown := {*chosen} - {*known_names}:
        raise typer.BadParameter(f"unknown {what} {sorted(unknown)}: there are {', '.join(known_names)}")
    return chosen


def _numbers(given: str) -> tuple[int, ...]:
    return tuple(int(number) for number in given.split(","))


def main(
    prompts: Annotated[Path, typer.Option(help="Folder of question files (.jsonl).")],
    model: Annotated[str, typer.Option(help="Model name, folder or hub id.")] = "demo",
    head: Annotated[Path | None, typer.Option(help="EAGLE-3 head's folder; else the model's own.")] = None,
    parts: Annotated[str, typer.Option(help=f"Of {', '.join(PARTS)}.")] = ",".join(PARTS),
    quantization: Annotated[str, typer.Option(help=f"Of {', '.join(NAMES)}.")] = f"{PLAIN},int8",
    limit: Annotated[int, typer.Option(min=0, help="Prompts of each set in methods; 0 takes all.")] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="Times that methods takes each prompt.")] = 1,
    ways: Annotated[str, typer.Option(help="Of methods, by their names in its table; else all.")] = "",
    few: Annotated[int, typer.Option(min=1, help="Prompts of each set in rules, formula and pair.")] = 8,
    tokens: Annotated[int, typer.Option(min=2, help="Most new tokens for each prompt.")] = 96,
    load_method: Annotated[
        str, typer.Option(help="Drafts under load: head, lookup (before it), ngram.")
    ] = "head",
    batches: Annotated[str, typer.Option(help="Of load.")] = ",".join(map(str, BATCHES)),
    most: Annotated[int, typer.Option(min=1, help="Most drafts under load.")] = 5,
    load_tokens: Annotated[int, typer.Option(min=2, help="Most new tokens under load.")] = 32,
    load_minutes: Annotated[float, typer.Option(help="For each batch size, if need be.")] = 3.0,
    pair: Annotated[str, typer.Option(help="Target and draft model, names or folders.")] = ",".join(PAIR),
    pair_quantization: Annotated[str, typer.Option(help="Of the pair's target.")] = "int8",
    pair_lengths: Annotated[str, typer.Option(help="Of the pair's chains.")] = "4,7",
    plot: Annotated[Path | None, typer.Option(help="Draw formula there (.svg).")] = None,
    threads: Annotated[int, typer.Option(min=0, help="Of torch; 0 takes all cores.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all samples there.")] = None,
) -> None:
    """Prints what speculation gives. Exits 1 where a bar is missed, 2 where something cannot be installed."""
    chosen = _chosen(parts, PARTS, "parts")
    precisions = _chosen(quantization, NAMES, "precisions")
    console, home = Console(width=WIDTH), read_environment().home
    cores = threads or len(os.sched_getaffinity(0))
    entry = resolve(model, home, silent)
    theirs = known(entry)
    folder = theirs.head if head is None and theirs is not None else head
    own = None if folder is None else SpeculationConfig(method="eagle3", model=folder)
    by_name = {
        "head": own,
        "lookup": None if own is None else replace(own, lookup_first=True),
        "ngram": SpeculationConfig(method="ngram"),
    }
    if load_method not in by_name:
        raise typer.BadParameter(f"unknown --load-method {load_method!r}: there are {', '.join(by_name)}")
    drafts = by_name[load_method]
    if drafts is None and "load" in chosen:
        raise typer.BadParameter(
            "no head comes with this model: name one with --head, or --load-method ngram"
        )
    names = _chosen(ways, tuple(way.name for way in ways_to_draft(own)), "ways to draft")
    sets = {name: prompts_of(name, prompts, entry.path, limit) for name in SETS}
    verdicts: list[Verdict] = []
    report: dict[str, object] = {}

    def take(part: str, outcome: Outcome) -> None:
        for table in outcome.tables:
            console.print(table)
        verdicts.extend(outcome.verdicts)
        report[part] = outcome.samples
        # Engines refer to themselves, and hold their pools until they are collected.
        gc.collect()

    try:
        for precision in precisions if {*chosen} & {"methods", "rules", "formula", "load"} else ():
            place = Place(
                Loaded.load(entry.path, precision, cores), own, sets, tokens, console, home / "benchmarks"
            )
            runs: dict[str, Callable[[Place], Outcome]] = {
                "methods": lambda place: run_methods(place, rounds, names)
            }
            if precision == precisions[0]:
                runs["rules"] = lambda place: run_rules(place, few)
                runs["formula"] = lambda place: run_formula(place, few, plot)
                if drafts is not None:
                    load = Load(drafts, _numbers(batches), most, load_minutes, load_tokens)
                    runs["load"] = lambda place, load=load: run_load(place, load)  # type: ignore[misc]
            for part in [part for part in runs if part in chosen]:
                take(f"{part} {precision}", runs[part](place))
        if "pair" in chosen:
            target, draft = (provide(name, home, silent).path for name in pair.split(","))
            settings = Pair(target, draft, pair_quantization, cores, _numbers(pair_lengths), few, tokens)
            take("pair", run_pair(settings, prompts, console))
    except InstallError as error:
        console.print(f"[red]error[/red]: {escape(str(error))}")
        raise typer.Exit(2) from error
    bars = Bars()
    console.print(bars_table(verdicts, bars))
    if json_file is not None:
        json_file.write_text(json.dumps(report, indent=1))
    bars.exit()


if __name__ == "__main__":
    typer.run(main)
