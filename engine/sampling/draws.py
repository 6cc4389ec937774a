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


def write_uniforms(
    keys: torch.Tensor, token_ids: torch.Tensor, out: torch.Tensor, bits: torch.Tensor, spare: torch.Tensor
) -> None:
    """Uniform draws in (0, 1), one for each candidate of each row.

    Resolution is 2**-31 near 0, where the exponential draws that win come from.

    Args:
        keys: [R, 2] int32 from `key_tensor`.
        token_ids: [R, N] or [1, N] int32 ids.
        out: [R, N] fp32 that the draws are written to.
        bits, spare: [R, N] int32 to work in.
    """
    torch.bitwise_xor(token_ids, keys[:, :1], out=bits)
    _mix(bits, spare)
    bits.bitwise_xor_(keys[:, 1:])
    _mix(bits, spare)
    out.copy_(bits.bitwise_and_(0x7FFFFFFF))
    out.add_(0.5).mul_(2.0**-31).clamp_(max=1.0 - 2.0**-24)


def uniforms(keys: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """As `write_uniforms`, into new memory: [R, N] fp32. `token_ids` may be of any integer type."""
    bits = torch.empty(len(keys), token_ids.shape[1], dtype=torch.int32, device=keys.device)
    out = torch.empty_like(bits, dtype=torch.float32)
    write_uniforms(keys, token_ids.to(torch.int32), out, bits, torch.empty_like(bits))
    return out


def exponentials(keys: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Exponential draws of rate 1, [R, N] fp32, all positive and finite; arguments as `uniforms`."""
    return uniforms(keys, token_ids).neg_().log1p_().neg_()
