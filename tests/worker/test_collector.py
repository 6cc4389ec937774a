"""Python's garbage collector in a worker's process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# In a process of its own: it is one setting for all that runs in a process.
SCRIPT = """
import gc
from worker.collector import settle_collector

there = [[number] for number in range(10_000)]
settle_collector()
before = sum(gen["collections"] for gen in gc.get_stats())
assert gc.get_freeze_count() > 10_000
alive = [[number] for number in range(20_000)]
assert sum(gen["collections"] for gen in gc.get_stats()) == before, "looked for garbage too soon"
cycle = []
cycle.append(cycle)
del cycle
alive += [[number] for number in range(60_000)]
assert sum(gen["collections"] for gen in gc.get_stats()) > before, "never looked for garbage"
"""


def test_it_looks_seldom_but_does_look() -> None:
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", SCRIPT], cwd=root, check=True, timeout=60)
