"""Cost of the prefix index: `python -m benchmarks.index_lookup`.

16 workers and 200,000 blocks in chains of 512 (8,192 tokens in blocks of 16). Printed for several numbers of
workers that hold each block: the median time of one lookup as a router sees it, Redis's own share, lookups a
second with 16 in flight, and memory. The server is the embedded one on the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from redis.asyncio import Redis
from rich.console import Console
from rich.table import Table

from benchmarks.bars import Spread
from cluster import embedded_redis
from prefix_index.connection import IndexConnection
from prefix_index.index import RedisPrefixIndex
from prefix_index.scripts import MATCH, PUBLISH, REGISTER

WORKERS = 16
BLOCKS = 200_000
CHAIN = 512
BATCH = 1024
LEASE_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Cost:
    """One row: times in seconds, memory in bytes."""

    holders: int
    hit: Spread
    miss: Spread
    server: float
    per_second: float
    bytes_per_block: float


def chains() -> list[list[bytes]]:
    """All blocks of the index, chain by chain."""
    names = [blake2b(number.to_bytes(8, "little"), digest_size=16).digest() for number in range(BLOCKS)]
    return [names[start : start + CHAIN] for start in range(0, BLOCKS, CHAIN)]


async def fill(connection: IndexConnection, all_chains: list[list[bytes]], holders: int) -> None:
    """Registers all workers; chain c is held by `holders` of them, from worker c modulo 16 on."""
    for worker in range(WORKERS):
        worker_id = f"worker-{worker}"
        await connection.run(REGISTER, worker_id, "a", f"{1:020d}", LEASE_MS)
        held = [
            name
            for number, chain in enumerate(all_chains)
            if (worker - number) % WORKERS < holders
            for name in chain
        ]
        for start in range(0, len(held), BATCH):
            joined = b"".join(held[start : start + BATCH])
            await connection.run(PUBLISH, worker_id, "a", LEASE_MS, joined, b"")


async def timed(index: RedisPrefixIndex, lookups: list[list[bytes]]) -> Spread:
    """Times lookups, one after the other."""
    times = []
    for chain in lookups:
        start = time.perf_counter()
        await index.match(chain)
        times.append(time.perf_counter() - start)
    return Spread.of(times)


async def server_time(client: Redis, connection: IndexConnection, lookups: list[list[bytes]]) -> float:
    """Mean seconds that Redis itself spends on one lookup."""
    await client.config_resetstat()
    for chain in lookups:
        await connection.run(MATCH, b"".join(chain))
    return float((await client.info("commandstats"))["cmdstat_evalsha"]["usec_per_call"]) / 1e6


async def throughput(index: RedisPrefixIndex, lookups: list[list[bytes]]) -> float:
    """Lookups a second with 16 in flight."""
    pending = iter(lookups)

    async def caller() -> None:
        for chain in pending:
            await index.match(chain)

    start = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(16)))
    return len(lookups) / (time.perf_counter() - start)


async def measure(url: str, holders: int, rounds: int) -> Cost:
    """Fills an empty server and measures one row."""
    async with Redis.from_url(url, protocol=2) as client:
        await client.flushall()
        connection, index = IndexConnection(url, "default", 30.0), RedisPrefixIndex(url)
        all_chains = chains()
        await fill(connection, all_chains, holders)
        used = await client.memory_usage(connection.keys.blocks, samples=0)
        assert used is not None, "nothing was published"
        # A stride that visits chains out of order: the server's CPU caches must not help.
        lookups = [all_chains[number * 37 % (len(all_chains) - 1)] for number in range(rounds)]
        cost = Cost(
            holders=holders,
            hit=await timed(index, lookups),
            miss=await timed(index, [chain_of_nobody()] * rounds),
            server=await server_time(client, connection, lookups),
            per_second=await throughput(index, lookups),
            bytes_per_block=used / BLOCKS,
        )
        await connection.close()
        await index.close()
        return cost


def chain_of_nobody() -> list[bytes]:
    """A chain that no worker holds."""
    return [blake2b(number.to_bytes(9, "little"), digest_size=16).digest() for number in range(CHAIN)]


def main() -> None:
    """Runs the rows and prints them."""
    parser = argparse.ArgumentParser(description="Times lookups in the prefix index and weighs it.")
    parser.add_argument("--rounds", type=int, default=1000, help="Lookups of each kind.")
    parser.add_argument("--holders", type=int, nargs="+", default=[1, 4, 16], help="Holders of each block.")
    arguments = parser.parse_args()
    table = Table(
        title=f"{CHAIN}-block lookup, {WORKERS} workers, {BLOCKS:,} blocks; times in ms, median and range"
    )
    for column in (
        "holders",
        "found",
        "not found",
        "in Redis",
        "lookups/s",
        "bytes/block",
        "bytes/(block, worker)",
    ):
        table.add_column(column, justify="right")
    with tempfile.TemporaryDirectory() as folder, embedded_redis.start(Path(folder) / "redis.log") as server:
        for holders in arguments.holders:
            cost = asyncio.run(measure(server.url, holders, arguments.rounds))
            table.add_row(
                str(holders),
                cost.hit.text(1e3, 2),
                cost.miss.text(1e3, 2),
                f"{cost.server * 1e3:.2f}",
                f"{cost.per_second:,.0f}",
                f"{cost.bytes_per_block:.0f}",
                f"{cost.bytes_per_block / holders:.1f}",
            )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
