"""The reference: plain torch, any device and dtype.

The arithmetic keeps transformers' order and precision (norms and rotary angles in fp32, then the model's
dtype), so that fp32 greedy tokens agree with it. Weights are stored transposed and contiguous, (in, out),
for `x @ weight`: on a CPU that is the faster form for the small batches of decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from engine.ops.activation import Activation
from engine.ops.base import HeadNorms, Linear, Norm
from engine.quantization.int8 import Int8Weight, round_inputs


@dataclass(frozen=True, slots=True)
class TorchLinear:
    """`weight` is [in, out], `bias` [out]. `rounds_inputs`: the weight was int8."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    rounds_inputs: bool = False

    @property
    def in_features(self) -> int:
        """Inputs."""
        return self.weight.shape[0]

    @property
    def out_features(self) -> int:
        """Outputs."""
        return self.weight.shape[1]

    @property
    def nbytes(self) -> int:
        """What one pass reads from memory."""
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)


class TorchTape:
    """Implements `engine.ops.base.Tape`: has everything computed each time."""

    def play(self, name: Hashable, tensors: Sequence[torch.Tensor], compute: Callable[[], None]) -> None:
        """Computes."""
        compute()


class TorchOps:
    """See the module; implements `engine.ops.base.Ops`."""

    def pack(self, weight: torch.Tensor | Int8Weight, bias: torch.Tensor | None = None) -> Linear:
        """Transposes the weight [out, in]. An int8 weight is widened again."""
        if isinstance(weight, Int8Weight):
            return TorchLinear(weight.dequantized().t().contiguous(), bias, rounds_inputs=True)
        return TorchLinear(weight.t().contiguous(), bias)

    def pack_gated(self, weight: torch.Tensor | Int8Weight, bias: torch.Tensor | None = None) -> Linear:
        """As `pack`: gate and up are told apart when they are applied."""
        return self.pack(weight, bias)

    def tape(self) -> TorchTape:
        """As `Ops.tape`."""
        return TorchTape()

    def rms_norm(self, hidden: torch.Tensor, norm: Norm) -> torch.Tensor:
        """Norm over the last dimension."""
        wide = hidden.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + norm.eps)
        return ((wide * scale).to(norm.weight.dtype) * norm.weight).to(hidden.dtype)

    def add_normed(self, target: torch.Tensor, hidden: torch.Tensor, norm: Norm) -> None:
        """Adds norm(hidden) in place."""
        target += self.rms_norm(hidden, norm)

    def copy(self, hidden: torch.Tensor, target: torch.Tensor) -> None:
        """Copies."""
        target.copy_(hidden)

    def linear(
        self,
        hidden: torch.Tensor,
        linear: Linear,
        *,
        norm: Norm | None = None,
        residual: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """linear(norm(hidden)), added to `residual` in place where there is one."""
        assert isinstance(linear, TorchLinear)
        if norm is not None:
            hidden = self.rms_norm(hidden, norm)
        if linear.rounds_inputs:
            hidden = round_inputs(hidden)
        if linear.bias is None:
            result = hidden @ linear.weight
        else:
            result = torch.addmm(linear.bias, hidden, linear.weight)
        return result if residual is None else residual.add_(result)

    def gated_linear(
        self, hidden: torch.Tensor, gate_up: Linear, activation: Activation, *, norm: Norm | None = None
    ) -> torch.Tensor:
        """activation(gate) * up of norm(hidden)."""
        gate, up = self.linear(hidden, gate_up, norm=norm).chunk(2, dim=-1)
        if activation is Activation.SILU:
            return functional.silu(gate) * up
        return functional.gelu(gate, approximate="tanh") * up

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
        rotated = heads[:, : num_heads + num_kv_heads]
        if norms is not None:
            query, key = rotated[:, :num_heads], rotated[:, num_heads:]
            query.copy_(self.rms_norm(query, norms.query))
            key.copy_(self.rms_norm(key, norms.key))
        half = cos.shape[1]
        cos, sin = cos[:, None].to(heads.dtype), sin[:, None].to(heads.dtype)
        first, second = rotated[..., :half].clone(), rotated[..., half : 2 * half].clone()
        rotated[..., :half] = first * cos - second * sin
        rotated[..., half : 2 * half] = second * cos + first * sin
