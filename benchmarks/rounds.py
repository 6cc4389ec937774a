"""Interleaved rounds of several engines over the same prompts, and what came of them."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from benchmarks.bars import Spread
from benchmarks.peers.process import Command, Runner
from benchmarks.peers.protocol import Run

FIRST_TOKEN, LAST_TOKEN = 100, 40_000


@dataclass(frozen=True, slots=True)
class Workload:
    """A batch of equally long prompts, all submitted at once."""

    batch: int
    prompt_tokens: int
    output_tokens: int

    @property
    def name(self) -> str:
        """As tables show it."""
        if self.output_tokens == 1:
            return f"prefill of {self.prompt_tokens}"
        return f"batch {self.batch}"


GENERATION = tuple(Workload(batch, 128, 128) for batch in (1, 4, 16))
PREFILL = Workload(1, 1024, 1)


@dataclass(frozen=True, slots=True)
class Sample:
    """One batch of one engine.

    Attributes:
        ttft_s: until every sequence had its first token.
        total_s: until every sequence had its last one.
        tokens_per_s: generated tokens by the whole time; of a prefill, prompt tokens by it.
        decode_per_s: tokens that came after `ttft_s`, by the time since; 0 for a prefill.
        token_ids: of every answer.
    """

    ttft_s: float
    total_s: float
    tokens_per_s: float
    decode_per_s: float
    token_ids: list[list[int]]

    @classmethod
    def of(cls, run: Run, workload: Workload) -> Sample:
        """Raises ValueError where the engine did other work than asked."""
        lengths = [len(answer) for answer in run.token_ids]
        if lengths != [workload.output_tokens] * workload.batch:
            raise ValueError(f"asked for {workload.batch} x {workload.output_tokens} tokens, got {lengths}")
        ttft = max(seconds[0] for seconds in run.seconds)
        total = max(seconds[-1] for seconds in run.seconds)
        if workload.output_tokens == 1:
            return cls(ttft, total, workload.batch * workload.prompt_tokens / total, 0.0, run.token_ids)
        later = sum(second > ttft for seconds in run.seconds for second in seconds)
        return cls(ttft, total, sum(lengths) / total, later / (total - ttft), run.token_ids)


@dataclass(slots=True)
class Measurements:
    """Samples in round order.

    Attributes:
        samples: by engine and workload.
        versions: by engine.
        bandwidth: bytes a second that memory gave, one value a round; empty where it was not asked.
    """

    samples: dict[str, dict[Workload, list[Sample]]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    bandwidth: list[float] = field(default_factory=list)

    def rates(self, engine: str, workload: Workload) -> list[float]:
        """Tokens a second in all, round by round."""
        return [sample.tokens_per_s for sample in self.samples[engine][workload]]

    def ratio(self, engine: str, peer: str, workload: Workload) -> Spread:
        """How many times faster the engine was than the peer, round by round."""
        pairs = zip(self.rates(engine, workload), self.rates(peer, workload), strict=True)
        return Spread.of([own / other for own, other in pairs])

    def agreement(self, engine: str, yardstick: str, workload: Workload) -> float:
        """Share of the tokens before the first difference from the yardstick's, over all rounds."""
        same = wanted = 0
        pairs = zip(self.samples[engine][workload], self.samples[yardstick][workload], strict=True)
        for own, other in pairs:
            for left, right in zip(own.token_ids, other.token_ids, strict=True):
                differs = (at for at, (a, b) in enumerate(zip(left, right, strict=True)) if a != b)
                same += next(differs, len(left))
                wanted += len(left)
        return same / wanted


@contextlib.contextmanager
def started(commands: Sequence[Command], logs: Path, console: Console) -> Iterator[list[Runner]]:
    """All runners, loaded one after the other; ended with the block. Raises RunnerError."""
    logs.mkdir(parents=True, exist_ok=True)
    runners: list[Runner] = []
    try:
        for command in commands:
            with console.status(f"{command.name}: loading"):
                runner = Runner(command, logs / f"{command.name.replace(' ', '-')}.log")
                runners.append(runner)
                runner.wait_ready()
            console.print(f"{runner.name}: ready (version {runner.version})")
        yield runners
    finally:
        for runner in runners:
            runner.close()


def measure(runners: Sequence[Runner], memory: Runner, rounds: int) -> Measurements:
    """Every engine on every workload, `rounds` times and once before that is not counted.

    Within a round all engines get the same prompts, which no other round has; who comes first changes from
    round to round.
    """
    randomness = random.Random(0)
    found = Measurements(
        samples={runner.name: {} for runner in runners},
        versions={runner.name: runner.version for runner in runners},
    )
    workloads = (*GENERATION, PREFILL)
    with Progress() as progress:
        task = progress.add_task("rounds", total=(rounds + 1) * len(workloads) * len(runners))
        for number in range(rounds + 1):
            bandwidth = memory.run([[0]], 1).seconds[0][0]
            if number:
                found.bandwidth.append(bandwidth)
            for workload in workloads:
                prompts = [
                    [randomness.randint(FIRST_TOKEN, LAST_TOKEN) for _ in range(workload.prompt_tokens)]
                    for _ in range(workload.batch)
                ]
                for place in range(len(runners)):
                    runner = runners[(place + number) % len(runners)]
                    progress.update(task, description=f"{runner.name}, {workload.name}")
                    sample = Sample.of(runner.run(prompts, workload.output_tokens), workload)
                    if number:  # the first round warms up
                        found.samples[runner.name].setdefault(workload, []).append(sample)
                    progress.advance(task)
    return found
