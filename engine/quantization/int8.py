"""Weights in int8 with a scale for each output; inputs in int8 with a scale for each token and 64 inputs.

A scale for each output follows what differs most between weights, and costs one factor at the end. Inputs
have outliers in few channels, always the same: with one scale for a token these would leave the others a
handful of steps; with one for each 64 they spoil only their own group.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

GROUP = 64
"""Inputs that share a scale."""
_MAX = 127


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """A weight matrix values * scales. `values` are [out, in] int8, `scales` [out] fp32.

    `dtype` is what the weight was, and what its inputs are.
    """

    values: torch.Tensor
    scales: torch.Tensor
    dtype: torch.dtype

    def dequantized(self) -> torch.Tensor:
        """[out, in]."""
        return (self.values * self.scales[:, None]).to(self.dtype)


def quantize(weight: torch.Tensor) -> Int8Weight:
    """Rounds a weight [out, in] to the nearest of 255 steps of each output's largest."""
    wide = weight.float()
    scales = wide.abs().amax(dim=1) / _MAX
    steps = torch.where(scales > 0, scales, 1.0)[:, None]
    return Int8Weight((wide / steps).round_().to(torch.int8), scales, weight.dtype)


def round_inputs(hidden: torch.Tensor) -> torch.Tensor:
    """What is left of inputs [T, in] after quantisation; dtype and shape as given."""
    tokens, width = hidden.shape
    groups = -(-width // GROUP)
    padded = torch.nn.functional.pad(hidden.float(), (0, groups * GROUP - width)).view(tokens, groups, GROUP)
    scales = padded.abs().amax(dim=2, keepdim=True) / _MAX
    steps = torch.where(scales > 0, scales, 1.0)
    rounded = (padded / steps).round_() * scales
    return rounded.view(tokens, groups * GROUP)[:, :width].to(hidden.dtype)
