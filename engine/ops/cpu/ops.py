"""The operations of a layer through the CPU kernels: fp32 activations, fp32 or int8 weights.

A row's result has the same bits in every batch. Results lie in buffers that are kept: see `Ops`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from engine.ops.activation import Activation
from engine.ops.base import HeadNorms, Linear, Norm
from engine.ops.cpu.library import Kernels
from engine.quantization.int8 import GROUP, Int8Weight

PANEL = 32
"""Columns of a panel of packed weights, as in kernels.cpp."""

_MAX_VIEWS = 1024
_MAX_KEPT = 1 << 24
"""Numbers of a result; larger ones, such as the logits of whole prompts, are rare and not kept."""


@dataclass(frozen=True, slots=True)
class CpuLinear:
    """A weight in panels of 32 outputs, laid out as kernels.cpp says.

    Attributes:
        in_features: inputs.
        out_features: outputs.
        panels: fp32, or uint8 with 128 added.
        scales: of an int8 weight's outputs; None for fp32.
        bias: of the outputs, or None.
    """

    in_features: int
    out_features: int
    panels: torch.Tensor
    scales: torch.Tensor | None
    bias: torch.Tensor | None
    address: int = field(init=False)
    scales_address: int | None = field(init=False)
    bias_address: int | None = field(init=False)

    def __post_init__(self) -> None:
        # Asked for at every call: kept, for they do not change.
        for name, tensor in (
            ("address", self.panels),
            ("scales_address", self.scales),
            ("bias_address", self.bias),
        ):
            object.__setattr__(self, name, None if tensor is None else tensor.data_ptr())

    @property
    def nbytes(self) -> int:
        """What one pass reads from memory."""
        return sum(part.nbytes for part in (self.panels, self.scales, self.bias) if part is not None)


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
        if rows * width > _MAX_KEPT:
            fresh = torch.empty(rows, width)
            return fresh, fresh.data_ptr()
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
        self.kernels = kernels
        self._linear = Buffers()
        self._gated = Buffers()

    def pack(self, weight: torch.Tensor | Int8Weight, bias: torch.Tensor | None = None) -> Linear:
        """Copies the weight [out, in] into panels."""
        values, scales = (weight.values, weight.scales) if isinstance(weight, Int8Weight) else (weight, None)
        out_features, in_features = values.shape
        panels = -(-out_features // PANEL)
        if scales is None:
            values, pack = _plain(values), self.kernels.pack
            memory = self.kernels.allocate(panels, in_features, PANEL, dtype=torch.float32)
        else:
            values, pack = values.contiguous(), self.kernels.pack_int8
            fours = -(-in_features // GROUP) * GROUP // 4
            memory = self.kernels.allocate(panels, fours, PANEL, 4, dtype=torch.uint8)
        pack(values.data_ptr(), out_features, in_features, memory.data_ptr())
        if bias is not None:
            bias = _plain(bias).clone()
        return CpuLinear(in_features, out_features, memory, scales, bias)

    def rms_norm(self, hidden: torch.Tensor, norm: Norm) -> torch.Tensor:
        """Norm over the last dimension; new memory."""
        hidden = _plain(hidden)
        result = torch.empty_like(hidden)
        width = hidden.shape[-1]
        self.kernels.rms_norm(
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
        weight = None if norm is None else norm.weight.data_ptr()
        eps = 0.0 if norm is None else norm.eps
        inputs = (hidden.data_ptr(), rows, linear.in_features, weight, eps, linear.address)
        outputs = (linear.bias_address, address, linear.out_features, residual is not None)
        if linear.scales_address is None:
            self.kernels.linear(*inputs, *outputs)
        else:
            self.kernels.linear_int8(*inputs, linear.scales_address, *outputs)
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
        self.kernels.rotate(
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
        self.kernels.gated(_plain_address(gate_up), rows, width, gelu, address)
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
