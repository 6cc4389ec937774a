"""The operations of a layer through the CPU kernels: fp32 activations, fp32 or int8 weights.

A row's result has the same bits in every batch. Results lie in buffers that are kept: see `Ops`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.ops.base import Activation, HeadNorms, Linear, Norm
from engine.ops.cpu.library import Kernels

PANEL = 32
"""Columns of a panel of packed weights, as in kernels.cpp."""

_MAX_VIEWS = 1024


@dataclass(frozen=True, slots=True)
class CpuLinear:
    """A weight in panels [ceil(out / 32), in, 32] fp32. `address` and `bias_address` are of the memory."""

    in_features: int
    out_features: int
    panels: torch.Tensor
    bias: torch.Tensor | None
    address: int
    bias_address: int | None

    @property
    def nbytes(self) -> int:
        """What one pass reads from memory."""
        return self.panels.nbytes + (0 if self.bias is None else self.bias.nbytes)


class Buffers:
    """Memory for results [rows, width], one for each width, grown as needed and kept."""

    def __init__(self) -> None:
        self._memory: dict[int, torch.Tensor] = {}
        self._views: dict[tuple[int, int], tuple[torch.Tensor, int]] = {}

    def get(self, rows: int, width: int) -> tuple[torch.Tensor, int]:
        """The tensor and its address; what it held is lost at the next call with this width."""
        found = self._views.get((rows, width))
        if found is not None:
            return found
        memory = self._memory.get(width)
        if memory is None or memory.shape[0] < rows:
            # By halves, so that slowly growing batches do not allocate at every step.
            memory = self._memory[width] = torch.empty(rows + rows // 2, width)
            self._views.clear()
        elif len(self._views) >= _MAX_VIEWS:
            self._views.clear()
        view = memory[:rows]
        self._views[rows, width] = found = view, view.data_ptr()
        return found


class CpuOps:
    """See the module; implements `engine.ops.base.Ops`."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._linear = Buffers()
        self._gated = Buffers()

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        """Copies the weight [out, in] into panels."""
        out_features, in_features = weight.shape
        weight = _plain(weight)
        panels = self._kernels.allocate(-(-out_features // PANEL), in_features, PANEL, dtype=torch.float32)
        self._kernels.pack(weight.data_ptr(), out_features, in_features, panels.data_ptr())
        if bias is not None:
            bias = _plain(bias).clone()
        address = None if bias is None else bias.data_ptr()
        return CpuLinear(in_features, out_features, panels, bias, panels.data_ptr(), address)

    def rms_norm(self, hidden: torch.Tensor, norm: Norm) -> torch.Tensor:
        """Norm over the last dimension; new memory."""
        hidden = _plain(hidden)
        result = torch.empty_like(hidden)
        width = hidden.shape[-1]
        self._kernels.rms_norm(
            hidden.data_ptr(),
            hidden.numel() // width,
            width,
            norm.weight.data_ptr(),
            norm.eps,
            result.data_ptr(),
        )
        return result

    def linear(
        self,
        hidden: torch.Tensor,
        linear: Linear,
        *,
        norm: Norm | None = None,
        residual: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """linear(norm(hidden)), added to `residual` in place where there is one."""
        assert isinstance(linear, CpuLinear)
        hidden = _plain(hidden)
        rows = hidden.shape[0]
        if residual is None:
            result, address = self._linear.get(rows, linear.out_features)
            if address == hidden.data_ptr():
                # The input is an earlier result of the same width.
                result = torch.empty_like(result)
                address = result.data_ptr()
        else:
            result, address = residual, _plain_address(residual)
        self._kernels.linear(
            hidden.data_ptr(),
            rows,
            linear.in_features,
            None if norm is None else norm.weight.data_ptr(),
            0.0 if norm is None else norm.eps,
            linear.address,
            linear.bias_address,
            address,
            linear.out_features,
            residual is not None,
        )
        return result

    def rotate(
        self,
        heads: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        num_heads: int,
        num_kv_heads: int,
        norms: HeadNorms | None = None,
    ) -> None:
        """Norms and rotates query and key heads in place."""
        self._kernels.rotate(
            _plain_address(heads),
            heads.stride(0),
            heads.shape[0],
            num_heads,
            num_kv_heads,
            heads.shape[2],
            _plain_address(cos),
            _plain_address(sin),
            cos.shape[1],
            None if norms is None else norms.query.weight.data_ptr(),
            None if norms is None else norms.key.weight.data_ptr(),
            0.0 if norms is None else norms.query.eps,
            0.0 if norms is None else norms.key.eps,
        )

    def gated(self, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
        """activation(gate) * up."""
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        result, address = self._gated.get(rows, width)
        gelu = activation is Activation.GELU_TANH
        self._kernels.gated(_plain_address(gate_up), rows, width, gelu, address)
        return result


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """As the kernels read it."""
    assert tensor.dtype is torch.float32, tensor.dtype
    return tensor.contiguous()


def _plain_address(tensor: torch.Tensor) -> int:
    """Of a tensor that the kernels write to, or that is always whole."""
    assert tensor.dtype is torch.float32
    assert tensor.is_contiguous()
    return tensor.data_ptr()
