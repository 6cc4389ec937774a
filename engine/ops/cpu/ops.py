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
"""Columns of a panel of packed weights, as in tile.h."""

_MAX_VIEWS = 1024
_MAX_KEPT = 1 << 24
"""Numbers of a result; larger ones, such as the logits of whole prompts, are rare and not kept."""


@dataclass(frozen=True, slots=True)
class CpuLinear:
    """A weight in panels of 32 outputs, laid out as linear.h and linear_int8.h say.

    Attributes:
        in_features: inputs.
        out_features: outputs.
        panels: fp32, or uint8 with 128 added.
        scales: of an int8 weight's outputs; None for fp32.
        bias: of the outputs, or None.
        alternating: whether panels of gate and up take turns.
    """

    in_features: int
    out_features: int
    panels: torch.Tensor
    scales: torch.Tensor | None
    bias: torch.Tensor | None
    alternating: bool
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
        return self._packed(weight, bias, 1)

    def pack_gated(self, weight: torch.Tensor | Int8Weight, bias: torch.Tensor | None = None) -> Linear:
        """Copies gate and up [2 I, in] into panels that alternate, so that both meet in one pass."""
        return self._packed(weight, bias, 2)

    def _packed(self, weight: torch.Tensor | Int8Weight, bias: torch.Tensor | None, parts: int) -> CpuLinear:
        """Panels of the `parts` equal matrices that stand one below the other in `weight`, taken in turn."""
        values, scales = (weight.values, weight.scales) if isinstance(weight, Int8Weight) else (weight, None)
        out_features, in_features = values.shape
        rows = out_features // parts
        panels = -(-rows // PANEL)
        if scales is None:
            values, pack = _plain(values), self.kernels.pack
            memory = self.kernels.allocate(panels, parts, in_features, PANEL, dtype=torch.float32)
        else:
            values, pack = values.contiguous(), self.kernels.pack_int8
            fours = -(-in_features // GROUP) * GROUP // 4
            memory = self.kernels.allocate(panels, parts, fours, PANEL, 4, dtype=torch.uint8)
        for part, matrix in enumerate(values.chunk(parts)):
            pack(matrix.data_ptr(), rows, in_features, memory[:, part].data_ptr(), parts)
        if bias is not None:
            bias = _plain(bias).clone()
        return CpuLinear(in_features, out_features, memory, scales, bias, alternating=parts == 2)

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
        assert not linear.alternating
        hidden = _plain(hidden)
        if residual is None:
            result, address = self._result(self._linear, hidden, linear.out_features)
        else:
            result, address = residual, _plain_address(residual)
        inputs = _inputs(hidden, linear, norm)
        outputs = (linear.bias_address, address, linear.out_features, residual is not None)
        if linear.scales_address is None:
            self.kernels.linear(*inputs, *outputs)
        else:
            self.kernels.linear_int8(*inputs, linear.scales_address, *outputs)
        return result

    def gated_linear(
        self, hidden: torch.Tensor, gate_up: Linear, activation: Activation, *, norm: Norm | None = None
    ) -> torch.Tensor:
        """activation(gate) * up of norm(hidden)."""
        assert isinstance(gate_up, CpuLinear)
        assert gate_up.alternating
        hidden = _plain(hidden)
        width = gate_up.out_features // 2
        result, address = self._result(self._gated, hidden, width)
        inputs = _inputs(hidden, gate_up, norm)
        outputs = (gate_up.bias_address, address, width, activation is Activation.GELU_TANH)
        if gate_up.scales_address is None:
            self.kernels.gated_linear(*inputs, *outputs)
        else:
            self.kernels.gated_linear_int8(*inputs, gate_up.scales_address, *outputs)
        return result

    def _result(self, buffers: Buffers, hidden: torch.Tensor, width: int) -> tuple[torch.Tensor, int]:
        """Memory for [T, width] that is not that of `hidden`, which may be an earlier result."""
        result, address = buffers.get(hidden.shape[0], width)
        if address == hidden.data_ptr():
            result = torch.empty_like(result)
            address = result.data_ptr()
        return result, address

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


def _inputs(
    hidden: torch.Tensor, linear: CpuLinear, norm: Norm | None
) -> tuple[int, int, int, int | None, float, int]:
    """The first arguments of the linear kernels."""
    weight = None if norm is None else norm.weight.data_ptr()
    eps = 0.0 if norm is None else norm.eps
    return hidden.data_ptr(), hidden.shape[0], linear.in_features, weight, eps, linear.address


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """As the kernels read it."""
    assert tensor.dtype is torch.float32, tensor.dtype
    return tensor.contiguous()


def _plain_address(tensor: torch.Tensor) -> int:
    """Of a tensor that the kernels write to, or that is always whole."""
    assert tensor.dtype is torch.float32
    assert tensor.is_contiguous()
    return tensor.data_ptr()
