"""How fast this machine reads memory: `python -m benchmarks.peers.bandwidth THREADS`.

No engine, but run like one. A command's answer has bytes a second in place of seconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import torch

from benchmarks.peers.protocol import Channel, Run

# Much larger than any cache, and of a decoder's kind of shape: a matrix times one vector.
ROWS, COLUMNS = 65_536, 4_096
REPEATS = 5


class Reader:
    """Multiplies one large matrix with a vector, which reads all of it once."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        self._matrix = torch.ones(ROWS, COLUMNS)
        self._vector = torch.ones(COLUMNS)
        self._product = torch.empty(ROWS)

    def run(self, prompts: Sequence[Sequence[int]], output_tokens: int) -> Run:
        """The best of several reads, of two kinds: what the machine can, not what it did on average."""
        rates = []
        for _ in range(REPEATS):
            for read in (self._multiply, self._matrix.sum):
                start = time.perf_counter()
                read()
                rates.append(self._matrix.nbytes / (time.perf_counter() - start))
        return Run([[0]], [[max(rates)]])

    def _multiply(self) -> None:
        torch.mv(self._matrix, self._vector, out=self._product)


if __name__ == "__main__":
    channel = Channel()
    channel.serve(Reader(int(sys.argv[1])), torch.__version__)
