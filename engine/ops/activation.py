"""Activations of gated feed-forward layers. No torch: configs name them."""

from __future__ import annotations

from enum import StrEnum


class Activation(StrEnum):
    """What a gated feed-forward layer applies to its gate."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"
