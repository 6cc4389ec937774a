"""Prefix hits on a trace of real conversations: the engine's block bookkeeping against an oracle.

    python benchmarks/prefix_cache_trace.py TRACE.jsonl [--pools 1000,4000,16000,64000] [--in-flight 8]

A line of the trace has `hash_ids`, one for each block of a prompt. Requests come in the trace's order, so
many of them at a time as `--in-flight` says, each holding its blocks until it ends. The oracle knows nothing
of the engine's pool: it keeps a tree of prefixes and, when it is full, drops the leaf whose last use is
longest ago.
"""

from __future__ import annotations

import heapq
import json
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.bars import Bars
from engine.api import EngineRequest, SamplingParams
from engine.kv.block_manager import BlockManager
from engine.sequence import Sequence as EngineSequence
from prefix_index.hashing import ChainHasher

TOLERANCE = 0.02
_SAMPLING = SamplingParams(temperature=0.0, top_p=1.0, top_k=0, seed=0, choice=0, max_tokens=1)

Prompt = tuple[int, ...]


@dataclass(slots=True)
class Hits:
    """Blocks found and blocks asked for, over all requests that fit."""

    found: int = 0
    asked: int = 0
    refused: int = 0

    @property
    def rate(self) -> float:
        """Share found."""
        return self.found / self.asked if self.asked else 0.0


class BookkeepingReplay:
    """The engine's blocks, cache and tables, with one token to a block, without a model."""

    def __init__(self, num_blocks: int) -> None:
        self._blocks = BlockManager(num_blocks, 1, num_blocks, ChainHasher("trace", 1))
        self._arrivals = 0

    def begin(self, prompt: Prompt) -> tuple[EngineSequence, int] | None:
        """Admits a prompt and computes it; the sequence and its hits, or None without room."""
        self._arrivals += 1
        request = EngineRequest(f"r{self._arrivals}", prompt, _SAMPLING)
        sequence = EngineSequence(request, self._arrivals, hold=True, submitted_s=0.0)
        hits = self._blocks.allocate(sequence, len(prompt), spare=0)
        if hits is None:
            return None
        sequence.num_computed = len(prompt)
        self._blocks.seal(sequence)
        return sequence, hits

    def end(self, sequence: EngineSequence) -> None:
        """Lets a sequence's blocks go."""
        self._blocks.free(sequence)


@dataclass(slots=True, eq=False)
class _Node:
    parent: _Node | None
    key: int
    children: dict[int, _Node]
    users: int = 0
    last_use: int = 0


class OracleReplay:
    """A tree of prefixes with room for so many nodes: least recently used leaf out first."""

    def __init__(self, num_blocks: int) -> None:
        self._room = num_blocks
        self._root = _Node(None, -1, {})
        self._size = 0
        self._pinned = 0
        self._time = 0
        # (last use, number, leaf), some of them outdated.
        self._leaves: list[tuple[int, int, _Node]] = []
        self._pushed = 0

    def begin(self, prompt: Prompt) -> tuple[list[_Node], int] | None:
        """As `BookkeepingReplay.begin`; the path takes the sequence's place."""
        path: list[_Node] = []
        node = self._root
        for key in prompt:
            child = node.children.get(key)
            if child is None:
                break
            path.append(child)
            node = child
        hits = len(path)
        idle = sum(1 for each in path if not each.users)
        new = len(prompt) - hits
        if self._pinned + idle + new > self._room:
            return None
        for each in path:
            self._pin(each)
        for key in prompt[hits:]:
            if self._size == self._room:
                self._drop_one()
            child = _Node(node, key, {})
            node.children[key] = child
            self._size += 1
            self._pin(child)
            path.append(child)
            node = child
        return path, hits

    def end(self, path: list[_Node]) -> None:
        """Ends a use of a path."""
        self._time += 1
        for node in path:
            node.users -= 1
            node.last_use = self._time
            self._pinned -= not node.users
        self._offer(path[-1])

    def _pin(self, node: _Node) -> None:
        self._pinned += not node.users
        node.users += 1

    def _offer(self, node: _Node) -> None:
        if not node.users and not node.children:
            self._pushed += 1
            heapq.heappush(self._leaves, (node.last_use, self._pushed, node))

    def _drop_one(self) -> None:
        while True:
            last_use, _, leaf = heapq.heappop(self._leaves)
            parent = leaf.parent
            if leaf.users or leaf.children or leaf.last_use != last_use or parent is None:
                continue
            if parent.children.get(leaf.key) is not leaf:
                continue
            del parent.children[leaf.key]
            self._size -= 1
            if parent.parent is not None:
                self._offer(parent)
            return


def replay(prompts: Iterable[Prompt], num_blocks: int, in_flight: int) -> tuple[Hits, Hits]:
    """Hits of the engine's bookkeeping and of the oracle.

    A prompt without room waits for the oldest in flight to end; one larger than the pool is refused.
    """
    results = []
    for kind in (BookkeepingReplay, OracleReplay):
        player: BookkeepingReplay | OracleReplay = kind(num_blocks)
        hits = Hits()
        running: deque[object] = deque()
        for prompt in prompts:
            if len(prompt) > num_blocks or not prompt:
                hits.refused += 1
                continue
            while len(running) >= in_flight or (begun := player.begin(prompt)) is None:
                player.end(running.popleft())  # type: ignore[arg-type]
            running.append(begun[0])
            hits.found += begun[1]
            hits.asked += len(prompt)
        results.append(hits)
    return results[0], results[1]


def load_trace(path: Path) -> list[Prompt]:
    """The block ids of each request. Raises SystemExit where the file is not such a trace."""
    try:
        return [tuple(json.loads(line)["hash_ids"]) for line in path.read_text().splitlines()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"{path} is no trace with hash_ids in each line: {error!r}") from None


def compare(prompts: Sequence[Prompt], pools: Sequence[int], in_flight: int, bars: Bars) -> Table:
    """One row for each size of the pool."""
    table = Table("blocks", "requests refused", "hit rate", "oracle", "ratio", title="Prefix hits")
    for num_blocks in pools:
        ours, oracle = replay(prompts, num_blocks, in_flight)
        ratio = ours.rate / oracle.rate if oracle.rate else 1.0
        table.add_row(
            str(num_blocks), str(ours.refused), f"{ours.rate:.4f}", f"{oracle.rate:.4f}", f"{ratio:.4f}"
        )
        bars.require(
            ours.refused == oracle.refused and abs(ratio - 1) <= TOLERANCE,
            f"{num_blocks} blocks: hit rate {ours.rate:.4f}, the oracle's {oracle.rate:.4f}",
        )
    return table


def main(
    trace: Annotated[Path, typer.Argument(help="JSON lines with hash_ids.")],
    pools: Annotated[str, typer.Option(help="Sizes of the pool, blocks.")] = "1000,4000,16000,64000",
    in_flight: Annotated[int, typer.Option(min=1, help="Requests at a time.")] = 8,
) -> None:
    """Exits 1 where the hit rate is more than 2 % from the oracle's."""
    bars = Bars()
    prompts = load_trace(trace)
    Console().print(compare(prompts, [int(size) for size in pools.split(",")], in_flight, bars))
    bars.exit()


if __name__ == "__main__":
    typer.run(main)
