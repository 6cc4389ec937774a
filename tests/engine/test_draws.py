"""Counter-based draws: reproducible, uniform and independent along every coordinate of the key."""

from __future__ import annotations

import math

import pytest
import torch

from engine.sampling import draws
from engine.sampling.draws import key_tensor
from engine.sampling.keys import DrawKey, Purpose, draw_key

VOCAB = torch.arange(50_000)
# Chi-square of 63 degrees of freedom exceeds this once in 10**6 fair draws; the draws here are fixed.
CHI_SQUARE_63 = 131.0
PINNED = [0.17877653, 0.12405635, 0.58670884, 0.46741647]


def chi_square(samples: torch.Tensor, bins: int = 64) -> float:
    counts = torch.bincount((samples.flatten() * bins).long(), minlength=bins).double()
    expected = samples.numel() / bins
    return float(((counts - expected) ** 2 / expected).sum())


def uniforms(made: DrawKey, token_ids: torch.Tensor) -> torch.Tensor:
    return draws.uniforms(key_tensor([made], token_ids.device), token_ids[None])[0]


def exponentials(made: DrawKey, token_ids: torch.Tensor) -> torch.Tensor:
    return draws.exponentials(key_tensor([made], token_ids.device), token_ids[None])[0]


def key(seed: int = 1, choice: int = 0, position: int = 0) -> DrawKey:
    return draw_key(seed, choice, position, Purpose.TOKEN)


def test_rows_are_drawn_with_their_own_keys() -> None:
    keys = [key(seed) for seed in range(9)]
    together = draws.uniforms(key_tensor(keys, VOCAB.device), VOCAB[None])
    assert all(torch.equal(row, uniforms(made, VOCAB)) for row, made in zip(together, keys, strict=True))
    own_ids = VOCAB[: 9 * 100].view(9, 100)
    each = draws.uniforms(key_tensor(keys, VOCAB.device), own_ids)
    assert torch.equal(each, torch.stack([together[row, own_ids[row]] for row in range(9)]))


def test_a_draw_depends_on_its_key_and_token_alone() -> None:
    drawn = uniforms(draw_key(7, 1, 2, Purpose.TOKEN), VOCAB)
    few = torch.tensor([40_000, 3, 17], dtype=torch.int32)
    assert torch.equal(uniforms(draw_key(7, 1, 2, Purpose.TOKEN), few), drawn[few.long()])


def test_draws_never_change_between_versions() -> None:
    """A seed that users noted down must go on giving the same tokens."""
    drawn = uniforms(draw_key(42, 0, 5, Purpose.TOKEN), torch.tensor([0, 1, 2, 49_151]))
    assert drawn.tolist() == pytest.approx(PINNED, abs=1e-6)


def test_every_coordinate_counts() -> None:
    keys = [
        key(seed, choice, position) for seed in range(20) for choice in range(5) for position in range(20)
    ]
    assert len(set(keys)) == len(keys)
    assert key(seed=-1) == key(seed=2**64 - 1)
    assert key(seed=-1) != key(seed=1)


@pytest.mark.parametrize("axis", ["token", "seed", "choice", "position"])
def test_uniform_along_each_axis(axis: str) -> None:
    if axis == "token":
        samples = torch.cat([uniforms(draw_key(seed, 0, 0, Purpose.TOKEN), VOCAB) for seed in range(4)])
    else:
        tokens = torch.tensor([0, 1, 31_999])
        keys = [
            draw_key(*(n if name == axis else 3 for name in ("seed", "choice", "position")), Purpose.TOKEN)
            for n in range(20_000)
        ]
        samples = draws.uniforms(key_tensor(keys, tokens.device), tokens[None])
    assert float(samples.min()) > 0.0
    assert float(samples.max()) < 1.0
    assert chi_square(samples) < CHI_SQUARE_63


@pytest.mark.parametrize(
    ("first", "second"),
    [((0, 0, 0), (0, 0, 1)), ((0, 0, 0), (1, 0, 0)), ((0, 0, 5), (0, 1, 5)), ((2, 0, 0), (2**32 + 2, 0, 0))],
)
def test_neighbouring_keys_are_independent(first: tuple[int, int, int], second: tuple[int, int, int]) -> None:
    x, y = (uniforms(draw_key(*coordinates, Purpose.TOKEN), VOCAB) for coordinates in (first, second))
    joint = (x * 8).long() * 8 + (y * 8).long()
    assert chi_square((joint + 0.5) / 64) < CHI_SQUARE_63
    assert abs(float(torch.corrcoef(torch.stack((x, y)))[0, 1])) < 5 / math.sqrt(len(VOCAB))


@pytest.mark.parametrize("lag", [1, 2, 64, 1024])
def test_neighbouring_tokens_are_independent(lag: int) -> None:
    drawn = uniforms(draw_key(11, 0, 0, Purpose.TOKEN), VOCAB)
    joint = (drawn[:-lag] * 8).long() * 8 + (drawn[lag:] * 8).long()
    assert chi_square((joint + 0.5) / 64) < CHI_SQUARE_63


def test_exponentials_are_positive_finite_and_of_rate_one() -> None:
    drawn = torch.cat([exponentials(draw_key(s, 0, 0, Purpose.TOKEN), VOCAB) for s in range(20)])
    assert bool(torch.isfinite(drawn).all())
    assert float(drawn.min()) > 0.0
    assert float(drawn.mean()) == pytest.approx(1.0, abs=5e-3)
    # The winners of a large vocabulary come from the smallest draws: these must be there, and distinct.
    assert float(drawn.min()) < 1e-5
    assert chi_square(1 - torch.exp(-drawn)) < CHI_SQUARE_63
