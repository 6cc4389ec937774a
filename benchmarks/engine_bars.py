"""What the engine must reach beside its peers, and tables of what it did reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table

from benchmarks.bars import Bars, Spread
from benchmarks.rounds import GENERATION, PREFILL, Measurements

OWN = {"fp32": "kvrelay fp32", "int8": "kvrelay int8"}
# Each must be measured for its bar to be judged; the better one counts.
FP32_PEERS = ("vllm fp32", "llama.cpp F32")
INT8_PEERS = ("openvino int8",)
PEERS_OF = {"fp32": (*FP32_PEERS, "openvino fp32"), "int8": (*INT8_PEERS, "llama.cpp Q8_0")}
LEAST_SHARE_OF_MEMORY = 0.75


@dataclass(frozen=True, slots=True)
class Verdict:
    """One bar.

    Attributes:
        statement: what must hold.
        measured: what was found, in words.
        holds: None where what it needs was not measured.
    """

    statement: str
    measured: str
    holds: bool | None


def speed_verdicts(found: Measurements) -> list[Verdict]:
    """The engine against its peers at every workload that has a bar."""
    cases = [
        *(("fp32", FP32_PEERS, workload) for workload in GENERATION),
        *(("int8", INT8_PEERS, workload) for workload in (*GENERATION, PREFILL)),
    ]
    verdicts = []
    for precision, peers, workload in cases:
        own = OWN[precision]
        against = " and ".join(peers)
        statement = f"{precision}, {workload.name}: at least 1.0x of {against}"
        missing = [name for name in (own, *peers) if name not in found.samples]
        if missing:
            verdicts.append(Verdict(statement, f"without {', '.join(missing)}", None))
            continue
        best = max(peers, key=lambda name: Spread.of(found.rates(name, workload)).median)
        ratio = found.ratio(own, best, workload)
        verdicts.append(Verdict(statement, f"{ratio.text(digits=2)} of {best}", ratio.median >= 1.0))
    return verdicts


def memory_verdict(found: Measurements, weight_bytes: int) -> Verdict:
    """Batch 1 in fp32 against what reading all weights once a token would allow.

    Round by round, for on a machine that is shared memory gives one round half of what it gives the next.
    The KV that a step reads as well is left out, which makes the bar a little higher.
    """
    statement = f"fp32, batch 1: at least {LEAST_SHARE_OF_MEMORY:.0%} of the memory's bandwidth"
    own = found.samples.get(OWN["fp32"])
    if own is None:
        return Verdict(statement, f"without {OWN['fp32']}", None)
    rounds = zip(own[GENERATION[0]], found.bandwidth, strict=True)
    share = Spread.of([sample.decode_per_s * weight_bytes / bandwidth for sample, bandwidth in rounds])
    gigabytes = Spread.of(found.bandwidth).text(1e-9)
    measured = f"{share.text(100, 0)} % (memory reads {gigabytes} GB/s, a token {weight_bytes / 1e6:.0f} MB)"
    return Verdict(statement, measured, share.median >= LEAST_SHARE_OF_MEMORY)


def perplexity_verdict(fp32: float, int8: float, most: float) -> Verdict:
    """Quality of int8 against fp32: at most so many times its perplexity."""
    return Verdict(
        f"int8: perplexity at most {most:.2f}x of fp32",
        f"{int8 / fp32:.4f}x ({fp32:.3f} to {int8:.3f})",
        int8 <= most * fp32,
    )


def speed_table(found: Measurements) -> Table:
    """Every engine at every workload."""
    table = Table(
        "workload", "engine", "tokens/s in all", "decoding", "TTFT ms", "kvrelay is x times", "same tokens %",
        title=r"median \[least .. greatest] of interleaved rounds",
    )  # fmt: skip
    yardstick = next((name for name in OWN.values() if name in found.samples), None)
    for workload in (*GENERATION, PREFILL):
        for engine, by_workload in found.samples.items():
            samples = by_workload[workload]
            own = next((OWN[kind] for kind, peers in PEERS_OF.items() if engine in peers), None)
            ratio = found.ratio(own, engine, workload).text(digits=2) if own in found.samples and own else ""
            same = found.agreement(engine, yardstick, workload) if yardstick else 0.0
            table.add_row(
                workload.name,
                engine,
                Spread.of([sample.tokens_per_s for sample in samples]).text(),
                "" if workload == PREFILL else Spread.of([sample.decode_per_s for sample in samples]).text(),
                Spread.of([sample.ttft_s for sample in samples]).text(1e3, 0),
                ratio,
                f"{same:.0%}".rstrip("%"),
            )
        table.add_section()
    return table


def bars_table(verdicts: Sequence[Verdict], bars: Bars) -> Table:
    """Every bar with its verdict; the missed ones are noted in `bars`."""
    table = Table("bar", "measured", "verdict", title="Bars")
    words = {None: "not measured", True: "[green]reached[/green]", False: "[red]missed[/red]"}
    for verdict in verdicts:
        table.add_row(escape(verdict.statement), escape(verdict.measured), words[verdict.holds])
        bars.require(verdict.holds is not False, f"{verdict.statement}: {verdict.measured}")
    return table
