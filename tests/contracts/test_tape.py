"""Computations that are done again from a tape, beside the same done by the operations themselves."""

from __future__ import annotations

import pytest
import torch

from engine.ops.activation import Activation
from engine.ops.base import Norm, Ops, Tape
from engine.quantization.int8 import quantize
from tests.contracts.test_ops import normal

HIDDEN, INNER = 96, 160


class Halves:
    """All kinds of operations one after the other, changing `hidden` [T, 96] in place.

    Attributes:
        calls: how often Python computed.
    """

    def __init__(self, ops: Ops, quantized: bool = False) -> None:
        self.ops = ops
        self.calls = 0
        store = quantize if quantized else torch.Tensor.clone
        self._norm = Norm(normal(HIDDEN, seed=1), 1e-5)
        self._qkv = ops.pack(store(normal(HIDDEN, HIDDEN, seed=2) / 10), normal(HIDDEN, seed=3))
        self._gate_up = ops.pack_gated(store(normal(2 * INNER, HIDDEN, seed=4) / 10))
        self._down = ops.pack(store(normal(HIDDEN, INNER, seed=5) / 10))

    def __call__(self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        self.calls += 1
        heads = self.ops.linear(hidden, self._qkv, norm=self._norm)
        self.ops.rotate(heads.view(len(hidden), 6, 16), cos, sin, 4, 1)
        self.ops.linear(heads, self._qkv, residual=hidden)
        gated = self.ops.gated_linear(hidden, self._gate_up, Activation.SILU, norm=self._norm)
        self.ops.add_normed(hidden, self.ops.linear(gated, self._down), self._norm)


def tensors(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    angles = normal(rows, 8, seed=seed + 1)
    return normal(rows, HIDDEN, seed=seed), angles.cos(), angles.sin()


def play(halves: Halves, into: tuple[torch.Tensor, ...], seed: int, tape: Tape) -> torch.Tensor:
    """What becomes of these numbers, in these places."""
    for place, values in zip(into, tensors(len(into[0]), seed), strict=True):
        place.copy_(values)
    tape.play("halves", into, lambda: halves(*into))
    return into[0].clone()


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("rows", [1, 7, 64])
def test_what_is_done_again_has_the_same_bits(ops: Ops, rows: int, quantized: bool) -> None:
    halves = Halves(ops, quantized)
    places, tape = tensors(rows, 0), ops.tape()
    for seed in (10, 20, 30):
        values = tensors(rows, seed)
        halves(*values)
        assert torch.equal(play(halves, places, seed, tape), values[0])


def test_python_computes_once(cpu: Ops) -> None:
    halves = Halves(cpu)
    places, tape = tensors(5, 0), cpu.tape()
    for seed in range(4):
        play(halves, places, seed, tape)
    assert halves.calls == 1


@pytest.mark.parametrize("rows", [3, 64])
def test_other_places_and_other_rows_are_other_computations(cpu: Ops, rows: int) -> None:
    halves, tape = Halves(cpu), cpu.tape()
    places, others = tensors(rows, 0), tensors(rows, 0)
    play(halves, places, 1, tape)
    for into in (others, tuple(part[:2] for part in places)):
        values = tensors(len(into[0]), 2)
        halves(*values)
        assert torch.equal(play(halves, into, 2, tape), values[0])
    assert halves.calls == 1 + 2 * 2


def test_names_tell_computations_apart(cpu: Ops) -> None:
    tape, hidden = cpu.tape(), normal(2, HIDDEN)
    first, second = cpu.pack(torch.eye(HIDDEN)), cpu.pack(torch.eye(HIDDEN) * 3)
    expected = hidden * 4 * 2 * 4  # each adds what it multiplies
    for name, linear in (("first", second), ("second", first), ("first", second)):
        tape.play(name, (hidden,), lambda linear=linear: cpu.linear(hidden, linear, residual=hidden))  # type: ignore[misc]
    torch.testing.assert_close(hidden, expected)


def test_what_reads_other_memory_is_computed_each_time(cpu: Ops) -> None:
    """As the results of an attention that the operations do not know."""
    tape, hidden, weight = cpu.tape(), torch.zeros(2, HIDDEN), cpu.pack(torch.eye(HIDDEN))
    for value in (1.0, 2.0, 3.0):
        fresh = torch.full((2, HIDDEN), value)
        tape.play("add", (hidden,), lambda fresh=fresh: cpu.linear(fresh, weight, residual=hidden))  # type: ignore[misc]
    assert torch.equal(hidden, torch.full((2, HIDDEN), 6.0))


def test_results_may_grow_in_between(cpu: Ops) -> None:
    """What a tape wrote to stays its own, though the operations' results lie elsewhere since."""
    halves, tape = Halves(cpu), cpu.tape()
    places = tensors(2, 0)
    play(halves, places, 1, tape)
    halves(*tensors(300, 5))
    values = tensors(2, 7)
    halves(*values)
    assert torch.equal(play(halves, places, 7, tape), values[0])


def test_what_is_copied_out_is_that_of_each_time(cpu: Ops) -> None:
    """Between operations, into columns of what the tape is given."""
    halves, tape = Halves(cpu), cpu.tape()
    hidden, cos, sin = tensors(5, 0)
    out = torch.zeros(5, 2 * HIDDEN)

    def compute() -> None:
        cpu.copy(hidden, out[:, HIDDEN:])
        halves(hidden, cos, sin)
        cpu.copy(hidden, out[:, :HIDDEN])

    for _ in range(3):
        before = hidden.clone()
        tape.play("copied", (hidden, cos, sin, out), compute)
        assert torch.equal(out, torch.cat((hidden, before), dim=1))
    assert halves.calls == 1


def test_an_error_ends_a_recording(cpu: Ops) -> None:
    halves, tape = Halves(cpu), cpu.tape()
    places = tensors(2, 0)

    def broken() -> None:
        halves(*places)
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        tape.play("halves", places, broken)
    values = tensors(2, 7)
    halves(*values)
    for _ in range(2):
        assert torch.equal(play(halves, places, 7, tape), values[0])
