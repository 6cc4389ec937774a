"""Memory for results, kept from step to step: fresh memory costs page faults and lies elsewhere each time."""

from __future__ import annotations

import torch

_MAX_VIEWS = 1024
_MAX_KEPT = 1 << 24
"""Numbers of a result; larger ones, such as the logits of whole prompts, are rare and not kept."""


class Buffers:
    """Memory for results [rows, width], one for each width, grown as needed and kept.

    Args:
        dtype: of the results.
        device: where they lie.
    """

    def __init__(self, dtype: torch.dtype = torch.float32, device: torch.device | None = None) -> None:
        self._dtype = dtype
        self._device = device
        self._memory: dict[int, torch.Tensor] = {}
        self._views: dict[tuple[int, int], tuple[torch.Tensor, int]] = {}

    def get(self, rows: int, width: int) -> tuple[torch.Tensor, int]:
        """The tensor and its address; what it held is lost at the next call with this width."""
        found = self._views.get((rows, width))
        if found is not None:
            return found
        if rows * width > _MAX_KEPT:
            fresh = self._allocate(rows, width)
            return fresh, fresh.data_ptr()
        memory = self._memory.get(width)
        if memory is None or memory.shape[0] < rows:
            # By halves, so that slowly growing batches do not allocate at every step.
            memory = self._memory[width] = self._allocate(rows + rows // 2, width)
            self._views.clear()
        elif len(self._views) >= _MAX_VIEWS:
            self._views.clear()
        view = memory[:rows]
        self._views[rows, width] = found = view, view.data_ptr()
        return found

    def _allocate(self, rows: int, width: int) -> torch.Tensor:
        return torch.empty(rows, width, dtype=self._dtype, device=self._device)
