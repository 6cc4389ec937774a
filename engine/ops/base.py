"""The seam between what a decoder computes and how a machine computes it.

A model is written once, over `Ops`. `torch_ops` is the reference and runs anywhere; other implementations
keep its results to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.ops.activation import Activation
from engine.quantization.int8 import Int8Weight


@dataclass(frozen=True, slots=True)
class Norm:
    """Root mean square norm (Zhang and Sennrich, 2019), computed in fp32.

    `weight` is [H], in the model's dtype, or in fp32: the normed values are rounded to the weight's dtype
    before they are multiplied by it, and the product to the model's.
    """

    weight: torch.Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """Norms over single heads before rotation (Qwen3, Gemma 3): weights [head_dim]."""

    query: Norm
    key: Norm


class Linear(Protocol):
    """A weight matrix with its bias, laid out for the machine by `Ops.pack`. Opaque but for its sizes."""

    @property
    def in_features(self) -> int:
        """Inputs."""
        ...

    @property
    def out_features(self) -> int:
        """Outputs."""
        ...

    @property
    def nbytes(self) -> int:
        """What one pass reads from memory."""
        ...


class Tape(Protocol):
    """Does again what was done before."""

    def play(self, name: Hashable, tensors: Sequence[torch.Tensor], compute: Callable[[], None]) -> None:
        """Computes.

        Where `compute` was called before under this name, with tensors that lay where these do and had as
        many rows, its operations may be done again without it. So it may do nothing but call the operations
        that the tape belongs to and attention, and the same ones each time. Where one of them reads memory
        that is neither of `tensors` nor what an operation before it wrote, such as results of other attention
        than the operations' own, it is called each time.

        Args:
            name: what is computed; weights that it uses live as long as the tape.
            tensors: contiguous; what it reads and writes beside its own results, the first [T, ...].
            compute: does it.
        """
        ...


class Ops(Protocol):
    """The operations of a decoder layer. T is the number of tokens in the flat batch.

    Results may live in buffers that the next call of the same operation overwrites: use or copy them first.
    """

    def pack(self, weight: torch.Tensor | Int8Weight, bias: torch.Tensor | None = None) -> Linear:
        """Lays out a weight [out, in] and a bias [out]; neither is kept.

        Inputs of an int8 weight are rounded as `engine.quantization.int8.round_inputs` does.
        """
        ...

    def pack_gated(self, weight: torch.Tensor | Int8Weight, bias: torch.Tensor | None = None) -> Linear:
        """Lays out gate and up, [2 I, in] with gate first, for `gated_linear`; else as `pack`."""
        ...

    def tape(self) -> Tape:
        """A tape for computations with these operations."""
        ...

    def rms_norm(self, hidden: torch.Tensor, norm: Norm) -> torch.Tensor:
        """Norm over the last dimension; shape as given."""
        ...

    def add_normed(self, target: torch.Tensor, hidden: torch.Tensor, norm: Norm) -> None:
        """Adds the norm of `hidden` over the last dimension to `target`, of the same shape, in place."""
        ...

    def copy(self, hidden: torch.Tensor, target: torch.Tensor) -> None:
        """Copies `hidden`, [T, H], to `target`, [T, H], which may be columns of wider rows."""
        ...

    def linear(
        self,
        hidden: torch.Tensor,
        linear: Linear,
        *,
        norm: Norm | None = None,
        residual: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """linear(norm(hidden)): [T, in] to [T, out].

        With `residual`, [T, out], the result is added to it in place, and it is what is returned.
        """
        ...

    def gated_linear(
        self, hidden: torch.Tensor, gate_up: Linear, activation: Activation, *, norm: Norm | None = None
    ) -> torch.Tensor:
        """activation(gate) * up, both of norm(hidden): [T, in] to [T, I]. `gate_up` is from `pack_gated`."""
        ...

    def rotate(
        self,
        heads: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        num_heads: int,
        num_kv_heads: int,
        norms: HeadNorms | None = None,
    ) -> None:
        """Norms and rotates query and key heads in place; value heads are left alone.

        Rotary position embedding, half-split form (Su et al., 2021, as in GPT-NeoX). Where the angles cover
        fewer than half of head_dim, the dimensions behind them stay.

        Args:
            heads: [T, num_heads + 2 * num_kv_heads, head_dim]: query, key, value.
            cos: [T, R], fp32, R at most head_dim / 2.
            sin: as cos.
            num_heads: query heads.
            num_kv_heads: key heads, and value heads.
            norms: applied first.
        """
        ...
