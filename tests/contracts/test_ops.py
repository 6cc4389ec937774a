"""Every implementation of the operations against plain float64, and the bits of the CPU kernels."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from engine.ops.activation import Activation
from engine.ops.base import HeadNorms, Norm, Ops
from engine.ops.cpu.ops import CpuOps
from engine.quantization.int8 import quantize, round_inputs

# (in, out): around the sizes of vectors, panels and blocks; the last is deeper than a block of the kernels.
SHAPES = [(1, 1), (16, 32), (33, 31), (64, 259), (100, 65), (129, 96), (4100, 40)]
ROWS = [1, 2, 5, 6, 7, 16, 193]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def normed(hidden: torch.Tensor, norm: Norm) -> torch.Tensor:
    wide = hidden.double()
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + norm.eps) * norm.weight.double()


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_linear(ops: Ops, inputs: int, outputs: int, rows: int) -> None:
    weight, bias = normal(outputs, inputs, seed=1), normal(outputs, seed=2)
    norm = Norm(normal(inputs, seed=3), 1e-5)
    hidden, residual = normal(rows, inputs, seed=4), normal(rows, outputs, seed=5)
    plain, biased = ops.pack(weight), ops.pack(weight, bias)
    assert (plain.in_features, plain.out_features) == (inputs, outputs)
    assert biased.nbytes - plain.nbytes == bias.nbytes
    exact = hidden.double() @ weight.double().t()
    tolerance = {"atol": 1e-6 * inputs**0.5 * 4, "rtol": 1e-5}
    torch.testing.assert_close(ops.linear(hidden, plain).double(), exact, **tolerance)
    torch.testing.assert_close(ops.linear(hidden, biased).double(), exact + bias, **tolerance)
    exact = normed(hidden, norm) @ weight.double().t() + bias
    torch.testing.assert_close(ops.linear(hidden, biased, norm=norm).double(), exact, **tolerance)
    target = residual.clone()
    result = ops.linear(hidden, biased, norm=norm, residual=target)
    assert result is target
    torch.testing.assert_close(target.double(), exact + residual, **tolerance)


def test_linear_of_no_rows(ops: Ops) -> None:
    """As the last layer gets them in a step that ends no context."""
    for weight in (normal(5, 8), quantize(normal(5, 8))):
        assert ops.linear(torch.empty(0, 8), ops.pack(weight)).shape == (0, 5)


def test_a_result_may_be_the_next_input(ops: Ops) -> None:
    """Also where both have the same width, and so perhaps the same memory."""
    first, second = normal(64, 64, seed=1) / 8, normal(64, 64, seed=2) / 8
    hidden = normal(9, 64)
    result = ops.linear(ops.linear(hidden, ops.pack(first)), ops.pack(second))
    exact = hidden.double() @ first.double().t() @ second.double().t()
    torch.testing.assert_close(result.double(), exact, atol=1e-5, rtol=1e-5)


def test_packing_keeps_no_reference(ops: Ops) -> None:
    weight, bias, hidden = normal(40, 20), normal(40), normal(3, 20)
    packed = ops.pack(weight.clone(), bias)
    expected = ops.linear(hidden, packed).clone()
    weight.zero_()
    assert torch.equal(ops.linear(hidden, packed), expected)


@pytest.mark.parametrize("shape", [(1, 7), (3, 64), (50, 576), (4, 3, 40)])
def test_rms_norm(ops: Ops, shape: tuple[int, ...]) -> None:
    hidden, norm = normal(*shape), Norm(normal(shape[-1], seed=1), 1e-6)
    torch.testing.assert_close(
        ops.rms_norm(hidden, norm).double(), normed(hidden, norm), atol=1e-6, rtol=1e-5
    )


@pytest.mark.parametrize(("rows", "width"), [(1, 7), (3, 64), (200, 100)])
def test_copy_into_columns(ops: Ops, rows: int, width: int) -> None:
    hidden, target = normal(rows, width), torch.zeros(rows, 3 * width)
    ops.copy(hidden, target[:, width : 2 * width])
    assert torch.equal(target[:, width : 2 * width], hidden)
    assert not target[:, :width].any()
    assert not target[:, 2 * width :].any()


def gated(gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return (
        functional.silu(gate) if activation is Activation.SILU else functional.gelu(gate, approximate="tanh")
    ) * up


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize(("rows", "width"), [(1, 5), (3, 64), (70, 100)])
def test_gated_linear(ops: Ops, activation: Activation, rows: int, width: int) -> None:
    weight, bias = normal(2 * width, 48, seed=1), normal(2 * width, seed=2) * 4
    # Gates far out: one of them is to be exactly what the bias says.
    weight[:4], bias[:4] = 0.0, torch.tensor([-200.0, 200.0, 0.0, -88.0])
    hidden, norm = normal(rows, 48), Norm(normal(48, seed=3), 1e-5)
    exact = hidden.double() @ weight.double().t()
    tolerance = {"atol": 4e-5, "rtol": 1e-5}
    plain, biased = ops.pack_gated(weight), ops.pack_gated(weight, bias)
    assert (biased.in_features, biased.out_features) == (48, 2 * width)
    found = ops.gated_linear(hidden, plain, activation)
    torch.testing.assert_close(found.double(), gated(exact, activation), **tolerance)
    exact = normed(hidden, norm) @ weight.double().t() + bias
    found = ops.gated_linear(hidden, biased, activation, norm=norm)
    torch.testing.assert_close(found.double(), gated(exact, activation), **tolerance)


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize(("rows", "width"), [(1, 5), (3, 64), (200, 100)])
def test_int8_gated_linear(ops: Ops, activation: Activation, rows: int, width: int) -> None:
    """What the plain layer finds for the same rows, gated."""
    stored, bias = quantize(normal(2 * width, 100, seed=1)), normal(2 * width, seed=2)
    hidden, norm = normal(rows, 100), Norm(normal(100, seed=3), 1e-5)
    expected = gated(ops.linear(hidden, ops.pack(stored, bias), norm=norm).double(), activation)
    found = ops.gated_linear(hidden, ops.pack_gated(stored, bias), activation, norm=norm)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=3e-6)


@pytest.mark.parametrize("quantized", [False, True])
def test_gated_rows_do_not_depend_on_the_batch(cpu: Ops, quantized: bool) -> None:
    weight = normal(2 * 300, 200)
    linear = cpu.pack_gated(quantize(weight) if quantized else weight)
    hidden = normal(300, 200, seed=2)
    rows = [hidden[row : row + 1] for row in range(12)]
    alone = torch.cat([cpu.gated_linear(row, linear, Activation.SILU).clone() for row in rows])
    for count in (2, 7, 12, 200, 300):
        found = cpu.gated_linear(hidden[:count], linear, Activation.SILU)
        assert torch.equal(found[:12], alone[:count])


@pytest.mark.parametrize("half", [3, 8, 20])
@pytest.mark.parametrize("with_norms", [False, True])
@pytest.mark.parametrize("tokens", [1, 33])
def test_rotate(ops: Ops, tokens: int, with_norms: bool, half: int) -> None:
    """Half of 20 is the whole head; less leaves the rest alone."""
    queries, keys, width = 6, 2, 40
    heads = normal(tokens, queries + 2 * keys, width)
    angles = normal(tokens, half, seed=1) * 3
    norms = HeadNorms(Norm(normal(width, seed=2), 1e-5), Norm(normal(width, seed=3), 1e-6))
    expected = heads.double()
    if with_norms:
        expected[:, :queries] = normed(expected[:, :queries], norms.query)
        expected[:, queries : queries + keys] = normed(expected[:, queries : queries + keys], norms.key)
    cos, sin = angles.double().cos()[:, None], angles.double().sin()[:, None]
    first, second = (part.clone() for part in expected[:, : queries + keys, : 2 * half].chunk(2, dim=-1))
    expected[:, : queries + keys, :half] = first * cos - second * sin
    expected[:, : queries + keys, half : 2 * half] = second * cos + first * sin
    ops.rotate(heads, angles.cos(), angles.sin(), queries, keys, norms if with_norms else None)
    torch.testing.assert_close(heads.double(), expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_rows_do_not_depend_on_the_batch(cpu: Ops, inputs: int, outputs: int) -> None:
    linear, norm = cpu.pack(normal(outputs, inputs)), Norm(normal(inputs, seed=1), 1e-5)
    hidden = normal(300, inputs, seed=2)
    alone = torch.cat([cpu.linear(hidden[row : row + 1], linear, norm=norm).clone() for row in range(12)])
    for rows in (2, 7, 12, 200, 300):
        assert torch.equal(cpu.linear(hidden[:rows], linear, norm=norm)[:12], alone[:rows])


def test_bits_do_not_depend_on_threads(cpu: Ops) -> None:
    assert isinstance(cpu, CpuOps)
    linear, hidden = cpu.pack(normal(700, 300)), normal(250, 300, seed=1)
    expected = cpu.linear(hidden, linear).clone()
    for threads in (1, 3, 8):
        cpu.kernels.set_threads(threads)
        assert torch.equal(cpu.linear(hidden, linear), expected)
    cpu.kernels.set_threads(2)


INT8_SHAPES = [(1, 1), (64, 32), (65, 31), (200, 259), (1536, 70)]


@pytest.mark.parametrize("rows", [1, 5, 13, 200])
@pytest.mark.parametrize(("inputs", "outputs"), INT8_SHAPES)
def test_int8_linear(ops: Ops, inputs: int, outputs: int, rows: int) -> None:
    """Against the definition, to rounding; and near the unquantised result."""
    weight, bias = normal(outputs, inputs, seed=1), normal(outputs, seed=2)
    norm = Norm(normal(inputs, seed=3), 1e-5)
    hidden, residual = normal(rows, inputs, seed=4), normal(rows, outputs, seed=5)
    stored = quantize(weight)
    packed = ops.pack(stored, bias)
    assert (packed.in_features, packed.out_features) == (inputs, outputs)
    rounded = round_inputs(normed(hidden, norm).float()).double()
    expected = rounded @ stored.dequantized().double().t() + bias
    # A value that lies between two steps may fall to either: a step of one input moves the result by this.
    step = (normed(hidden, norm).abs().amax() / 127 * weight.abs().amax()).item()
    found = ops.linear(hidden, packed, norm=norm)
    torch.testing.assert_close(found.double(), expected, atol=1.01 * step, rtol=1e-5)
    assert ((found - expected).abs() < 1e-4 + 1e-5 * expected.abs()).double().mean() > 0.95
    exact = normed(hidden, norm) @ weight.double().t() + bias
    assert (found - exact).norm() < 0.025 * exact.norm()
    target = residual.clone()
    assert torch.equal(ops.linear(hidden, packed, norm=norm, residual=target), residual + found)


def test_int8_zeros(ops: Ops) -> None:
    packed = ops.pack(quantize(torch.zeros(40, 70)))
    assert not ops.linear(normal(3, 70), packed).any()
    packed = ops.pack(quantize(normal(40, 70)))
    assert not ops.linear(torch.zeros(3, 70), packed).any()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("at", [0, 15, 17, 63, 64, 69])
def test_int8_hides_nothing_that_is_no_number(ops: Ops, value: float, at: int) -> None:
    packed, hidden = ops.pack(quantize(normal(40, 70))), normal(3, 70, seed=1)
    hidden[1, at] = value
    finite = ops.linear(hidden, packed).isfinite()
    assert not finite[1].any()
    assert finite[[0, 2]].all()


def test_int8_bits_are_those_of_every_cpu(every_cpu: list[Ops]) -> None:
    """Sums of integers are exact, so that only the order of the groups counts, and that is one."""
    stored, hidden = quantize(normal(100, 300)), normal(9, 300, seed=1)
    results = [each.linear(hidden, each.pack(stored)) for each in every_cpu]
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("inputs", "outputs"), INT8_SHAPES)
def test_int8_rows_do_not_depend_on_the_batch(cpu: Ops, inputs: int, outputs: int) -> None:
    linear, norm = cpu.pack(quantize(normal(outputs, inputs))), Norm(normal(inputs, seed=1), 1e-5)
    hidden = normal(300, inputs, seed=2)
    alone = torch.cat([cpu.linear(hidden[row : row + 1], linear, norm=norm).clone() for row in range(12)])
    for rows in (2, 7, 12, 200, 300):
        assert torch.equal(cpu.linear(hidden[:rows], linear, norm=norm)[:12], alone[:rows])
