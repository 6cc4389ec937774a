"""The operations of a layer through the CPU kernels: fp32 activations, fp32 or int8 weights.

A row's result has the same bits in every batch. Results lie in buffers that are kept: see `Ops`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from engine.ops.activation import Activation
from engine.ops.base import HeadNorms, Linear, Norm
from engine.ops.buffers import Buffers
from engine.ops.cpu.library import Kernels
from engine.ops.cpu.operations import CopyCall, Form, LinearCall, NormCall, Operation, RotateCall
from engine.ops.cpu.tape import CpuTape, Stream
from engine.quantization.int8 import GROUP, Int8Weight

PANEL = 32
"""Columns of a panel of packed weights, as in tile.h."""


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


class CpuOps:
    """See the module; implements `engine.ops.base.Ops`.

    Attributes:
        kernels: that compute.
        stream: through which they do, also for attention.
    """

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels
        self.stream = Stream(kernels)
        self._linear = (Buffers(), Buffers())
        self._gated = (Buffers(), Buffers())

    def tape(self) -> CpuTape:
        """As `Ops.tape`."""
        return CpuTape(self.stream)

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
        self._norm(hidden, norm, result, add=False)
        return result

    def add_normed(self, target: torch.Tensor, hidden: torch.Tensor, norm: Norm) -> None:
        """Adds norm(hidden) in place."""
        self._norm(_plain(hidden), norm, target, add=True)

    def _norm(self, hidden: torch.Tensor, norm: Norm, out: torch.Tensor, *, add: bool) -> None:
        width = hidden.shape[-1]
        call = NormCall(
            x=hidden.data_ptr(),
            weight=norm.weight.data_ptr(),
            out=_plain_address(out),
            width=width,
            add=add,
            eps=norm.eps,
        )
        self.stream.issue(Operation.of(hidden.numel() // width, call), (hidden,), out)

    def copy(self, hidden: torch.Tensor, target: torch.Tensor) -> None:
        """Copies rows into columns of others."""
        hidden = _plain(hidden)
        assert target.dtype is torch.float32, target.dtype
        assert target.stride(1) == 1
        rows, width = target.shape
        call = CopyCall(x=hidden.data_ptr(), out=target.data_ptr(), width=width, stride=target.stride(0))
        self.stream.issue(Operation.of(rows, call), (hidden,), target)

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
            result, address = _result(self._linear, hidden, linear.out_features)
            form = Form.WRITTEN
        else:
            result, address = residual, _plain_address(residual)
            form = Form.ADDED
        self._compute(hidden, linear, norm, result, address, form)
        return result

    def gated_linear(
        self, hidden: torch.Tensor, gate_up: Linear, activation: Activation, *, norm: Norm | None = None
    ) -> torch.Tensor:
        """activation(gate) * up of norm(hidden)."""
        assert isinstance(gate_up, CpuLinear)
        assert gate_up.alternating
        hidden = _plain(hidden)
        result, address = _result(self._gated, hidden, gate_up.out_features // 2)
        form = Form.GELU if activation is Activation.GELU_TANH else Form.SILU
        self._compute(hidden, gate_up, norm, result, address, form)
        return result

    def _compute(
        self,
        hidden: torch.Tensor,
        linear: CpuLinear,
        norm: Norm | None,
        result: torch.Tensor,
        address: int,
        form: Form,
    ) -> None:
        rows, columns = result.shape
        call = LinearCall(
            x=hidden.data_ptr(),
            norm=None if norm is None else norm.weight.data_ptr(),
            panels=linear.address,
            scales=linear.scales_address,
            bias=linear.bias_address,
            out=address,
            inputs=linear.in_features,
            columns=columns,
            form=form,
            eps=0.0 if norm is None else norm.eps,
        )
        self.stream.issue(Operation.of(rows, call), (hidden,), result)

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
        call = RotateCall(
            heads=_plain_address(heads),
            cos=_plain_address(cos),
            sin=_plain_address(sin),
            query_norm=None if norms is None else norms.query.weight.data_ptr(),
            key_norm=None if norms is None else norms.key.weight.data_ptr(),
            stride=heads.stride(0),
            num_query=num_heads,
            num_key=num_kv_heads,
            head_dim=heads.shape[2],
            half=cos.shape[1],
            query_eps=0.0 if norms is None else norms.query.eps,
            key_eps=0.0 if norms is None else norms.key.eps,
        )
        self.stream.issue(Operation.of(heads.shape[0], call), (heads, cos, sin), heads)


def _result(buffers: tuple[Buffers, Buffers], hidden: torch.Tensor, width: int) -> tuple[torch.Tensor, int]:
    """Memory for [T, width] that is not that of `hidden`, which may be an earlier result; and its address."""
    found = buffers[0].get(hidden.shape[0], width)
    return buffers[1].get(hidden.shape[0], width) if found[1] == hidden.data_ptr() else found


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """As the kernels read it."""
    assert tensor.dtype is torch.float32, tensor.dtype
    return tensor.contiguous()


def _plain_address(tensor: torch.Tensor) -> int:
    """Of a tensor that the kernels write to, or that is always whole."""
    assert tensor.dtype is torch.float32
    assert tensor.is_contiguous()
    return tensor.data_ptr()
