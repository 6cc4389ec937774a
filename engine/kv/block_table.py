"""Block tables of all sequences that hold blocks, as one array that a step gathers its rows from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_FIRST_ROWS = 16


class BlockTables:
    """Rows of block ids, padded with the scratch block 0. A row belongs to one sequence at a time.

    Args:
        max_blocks: most blocks of one sequence.
    """

    def __init__(self, max_blocks: int) -> None:
        self._array = np.zeros((_FIRST_ROWS, max_blocks), dtype=np.int64)
        self._free_rows = list(range(_FIRST_ROWS - 1, -1, -1))

    @property
    def array(self) -> npt.NDArray[np.int64]:
        """[rows, max_blocks]. To be read only, and not kept: `take` may replace it by a larger one."""
        return self._array

    def take(self, blocks: Sequence[int]) -> int:
        """A row that holds `blocks`."""
        if not self._free_rows:
            rows = len(self._array)
            self._array = np.concatenate([self._array, np.zeros_like(self._array)])
            self._free_rows.extend(range(2 * rows - 1, rows - 1, -1))
        row = self._free_rows.pop()
        self._array[row, : len(blocks)] = blocks
        return row

    def put(self, row: int, index: int, block: int) -> None:
        """Sets one entry."""
        self._array[row, index] = block

    def give_back(self, row: int) -> None:
        """Ends the use of a row."""
        self._array[row] = 0
        self._free_rows.append(row)
