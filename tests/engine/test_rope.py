"""Rotary embedding as transformers computes it from the same settings, in either spelling."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, Phi3Config, PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine.models.config import Rope
from engine.models.errors import CheckpointError, UnsupportedModelError
from engine.models.rope import merged_settings, read_rope
from engine.models.rotary import Rotary, inverse_frequencies

HEAD_DIM = 32
LIMIT = 4096
_factors = st.floats(1.1, 64.0)
_thetas = st.sampled_from([100.0, 10000.0, 500000.0, 1e6])
_originals = st.sampled_from([64, 1024, 4096])
_optional = st.one_of(st.none(), st.floats(0.5, 2.0))


def read(rope: dict[str, object], context_length: int = 0) -> Rope:
    merged = merged_settings({"rope_parameters": rope}, 10000.0)
    return read_rope(merged, head_dim=HEAD_DIM, max_position_embeddings=LIMIT, context_length=context_length)[
        0
    ]


def limit(rope: dict[str, object]) -> int:
    merged = merged_settings({"rope_parameters": rope}, 10000.0)
    return read_rope(merged, head_dim=HEAD_DIM, max_position_embeddings=LIMIT, context_length=0)[1]


def check(
    rope: dict[str, object], context_length: int = 0, config: type[PreTrainedConfig] = LlamaConfig
) -> None:
    rope = {key: value for key, value in rope.items() if value is not None}
    theirs = config(
        hidden_size=HEAD_DIM * 2,
        num_attention_heads=2,
        max_position_embeddings=LIMIT,
        rope_parameters=dict(rope),
        **({"original_max_position_embeddings": rope["original_max_position_embeddings"]}
           if config is Phi3Config else {}),
    )  # fmt: skip
    expected, magnitude = ROPE_INIT_FUNCTIONS[str(rope["rope_type"])](
        theirs, device=None, seq_len=context_length or None
    )
    ours = read(rope, context_length)
    assert torch.equal(inverse_frequencies(ours), expected)
    assert ours.magnitude == magnitude


@settings(deadline=None)
@given(theta=_thetas, factor=_factors)
def test_linear(theta: float, factor: float) -> None:
    check({"rope_type": "linear", "rope_theta": theta, "factor": factor})


@settings(deadline=None)
@given(theta=_thetas, factor=_factors, length=st.integers(1, 8 * LIMIT))
def test_dynamic(theta: float, factor: float, length: int) -> None:
    check({"rope_type": "dynamic", "rope_theta": theta, "factor": factor}, length)


@settings(deadline=None)
@given(
    theta=_thetas,
    factor=_factors,
    original=_originals,
    magnitude=_optional,
    scales=st.one_of(st.just((None, None)), st.tuples(st.floats(0.5, 2.0), st.floats(0.5, 2.0))),
    betas=st.sampled_from([(None, None), (32.0, 1.0), (16.0, 2.0)]),
    truncate=st.sampled_from([None, True, False]),
)
def test_yarn(
    theta: float,
    factor: float,
    original: int,
    magnitude: float | None,
    scales: tuple[float | None, float | None],
    betas: tuple[float | None, float | None],
    truncate: bool | None,
) -> None:
    check(
        {
            "rope_type": "yarn",
            "rope_theta": theta,
            "factor": factor,
            "original_max_position_embeddings": original,
            "attention_factor": magnitude,
            "mscale": scales[0],
            "mscale_all_dim": scales[1],
            "beta_fast": betas[0],
            "beta_slow": betas[1],
            "truncate": truncate,
        }
    )


@settings(deadline=None)
@given(
    theta=_thetas,
    factor=_factors,
    original=_originals,
    low=st.floats(0.5, 2.0),
    span=st.floats(0.5, 4.0),
)
def test_llama3(theta: float, factor: float, original: int, low: float, span: float) -> None:
    check(
        {
            "rope_type": "llama3",
            "rope_theta": theta,
            "factor": factor,
            "low_freq_factor": low,
            "high_freq_factor": low + span,
            "original_max_position_embeddings": original,
        }
    )


@settings(deadline=None)
@given(
    theta=_thetas,
    original=_originals,
    length=st.integers(1, LIMIT),
    magnitude=_optional,
    short=st.lists(st.floats(1.0, 3.0), min_size=HEAD_DIM // 2, max_size=HEAD_DIM // 2),
    long=st.lists(st.floats(1.0, 60.0), min_size=HEAD_DIM // 2, max_size=HEAD_DIM // 2),
)
def test_longrope(
    theta: float, original: int, length: int, magnitude: float | None, short: list[float], long: list[float]
) -> None:
    rope = {
        "rope_type": "longrope",
        "rope_theta": theta,
        "original_max_position_embeddings": original,
        "short_factor": short,
        "long_factor": long,
        "attention_factor": magnitude,
    }
    check(rope, length, Phi3Config)


def test_the_spellings_of_transformers_4_and_5_are_one() -> None:
    old = {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}
    new = {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}}
    assert merged_settings(old, 1e4) == merged_settings(new, 1e4) == merged_settings(old | new, 1e4)
    contradiction = {"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "linear"}}
    with pytest.raises(CheckpointError, match="rope_type is 'default' in one place and 'linear' in another"):
        merged_settings(contradiction, 1e4)


def test_the_longest_context_is_that_after_scaling() -> None:
    assert limit({"rope_type": "default"}) == LIMIT
    assert limit({"rope_type": "linear", "factor": 2.5}) == 10240
    assert limit({"rope_type": "dynamic", "factor": 2.0}) == 8192
    yarn = {"rope_type": "yarn", "factor": 4.0}
    assert limit(yarn) == 4 * LIMIT
    assert limit(yarn | {"original_max_position_embeddings": 1000}) == 4000


def test_dynamic_scaling_is_for_the_longest_context_where_none_is_given() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0}
    assert read(rope) == read(rope, 2 * LIMIT) != read(rope, LIMIT)
    assert read(rope, 1) == read(rope, LIMIT) == read({"rope_type": "default"})


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"rope_type": "mrope"}, "type 'mrope' is not supported; supported are default, linear, dynamic"),
        ({"rope_type": "linear", "factor": 2.0, "mrope_section": [1]}, "'linear' with mrope_section is not"),
        ({"factor": 2.0}, "type 'default' with factor is not supported"),
    ],
)
def test_what_is_not_computed_is_refused(rope: dict[str, object], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        read(rope)


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"rope_type": "linear"}, "factor must be a positive number, not None"),
        ({"rope_type": "linear", "factor": -1}, "factor must be a positive number, not -1"),
        ({"rope_type": "yarn", "factor": 2.0, "truncate": "no"}, "truncate must be true or false"),
        ({"rope_type": "yarn", "factor": 2.0, "rope_theta": 1.0}, "type 'yarn': "),
        (
            {"rope_type": "longrope", "long_factor": [1.0], "original_max_position_embeddings": 64},
            r"long_factor must be a list of 16 numbers, not \[1.0\]",
        ),
        (
            {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 4, "high_freq_factor": 4},
            "low_freq_factor 4.0 must be below high_freq_factor 4.0",
        ),
        ({"partial_rotary_factor": 0.3}, "9 rotated dimensions of head_dim 32: must be even"),
        ({"partial_rotary_factor": 1.5}, "48 rotated dimensions of head_dim 32"),
    ],
)
def test_settings_that_make_no_sense(rope: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(rope)


@pytest.mark.parametrize("positions", [[0], [5, 3], [1023, 7, 1024], [9000, 2, 8999, 2], list(range(40))])
def test_angles_of_a_position_are_its_own(positions: list[int]) -> None:
    """Whatever was asked for before, and beside which others."""
    ropes = (Rope(HEAD_DIM, 10000.0), Rope(HEAD_DIM // 2, 500.0, magnitude=1.5), Rope(HEAD_DIM, 10000.0))
    rotary = Rotary(ropes, torch.device("cpu"))
    rotary.angles(torch.tensor([17]))
    found = rotary.angles(torch.tensor(positions))
    assert len(found) == 3
    for rope, (cos, sin) in zip(ropes, found, strict=True):
        angles = torch.tensor(positions).float()[:, None] * inverse_frequencies(rope)
        assert cos.is_contiguous()
        assert sin.is_contiguous()
        torch.testing.assert_close(cos, angles.cos() * rope.magnitude, atol=1e-6, rtol=0)
        torch.testing.assert_close(sin, angles.sin() * rope.magnitude, atol=1e-6, rtol=0)
    for row, position in enumerate(positions):
        alone = Rotary(ropes, torch.device("cpu")).angles(torch.tensor([position]))
        for (cos, sin), (cos_alone, sin_alone) in zip(found, alone, strict=True):
            assert torch.equal(cos[row], cos_alone[0])
            assert torch.equal(sin[row], sin_alone[0])
