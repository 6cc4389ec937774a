"""Counter-based random draws: a pure function of what is drawn, never of when or beside whom.

A draw is keyed (`engine.sampling.keys`) and made for each candidate token id: the candidates are mixed with
the key, two rounds of a bijective 32-bit mixer (multiply and xor-shift, constants of "lowbias32" by C.
Wellons, public domain), vectorised over rows and candidates. No generator state exists, so the same key
gives the same draw in any batch, on any worker and after any failover.
"""

from __future__ import annotations

import torch

from engine.sampling.keys import DrawKey


def key_tensor(keys: list[DrawKey], device: torch.device) -> torch.Tensor:
    """Keys of several rows, [R, 2] int32, as `random_bits` takes them."""
    return torch.tensor(keys, dtype=torch.int32, device=device).view(-1, 2)


def _mix(value: torch.Tensor, spare: torch.Tensor) -> None:
    """Bijective mixer of int32, in place. Torch shifts arithmetically, hence the masks."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B - (1 << 32)), (16, 1)):
        torch.bitwise_right_shift(value, shift, out=spare)
        value.bitwise_xor_(spare.bitwise_and_((1 << (32 - shift)) - 1))
        if factor != 1:
            value.mul_(factor)


def random_bits(keys: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """31 random bits for each candidate of each row.

    Args:
        keys: [R, 2] int32 from `key_tensor`.
        token_ids: [R, N] or [1, N] ids below 2**31.

    Returns:
        [R, N] int32, not negative.
    """
    bits = token_ids.to(torch.int32) ^ keys[:, :1]
    spare = torch.empty_like(bits)
    _mix(bits, spare)
    bits.bitwise_xor_(keys[:, 1:])
    _mix(bits, spare)
    return bits.bitwise_and_(0x7FFFFFFF)


def to_uniforms(bits: torch.Tensor) -> torch.Tensor:
    """Uniform draws in (0, 1) from `random_bits`, fp32.

    Resolution is 2**-31 near 0, where the exponential draws that win come from.
    """
    return bits.to(torch.float32).add_(0.5).mul_(2.0**-31).clamp_(max=1.0 - 2.0**-24)


def uniforms(keys: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Uniform draws in (0, 1), [R, N] fp32; arguments as `random_bits`."""
    return to_uniforms(random_bits(keys, token_ids))


def exponentials(keys: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Exponential draws of rate 1, [R, N] fp32, all positive and finite; arguments as `random_bits`."""
    return uniforms(keys, token_ids).neg_().log1p_().neg_()
