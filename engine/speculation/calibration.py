"""Measures what passes of the target cost on this machine, once for each kind of model and machine.

Passes of a few tokens without contexts, in scratch memory, before anything is served. What is found is kept
in a file that is named by a digest of all that it depends on, as built kernels are, so that the next start
takes no time. It is a first estimate: `engine.speculation.pass_cost` corrects it by the passes that follow.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.kv.block_pool import SCRATCH_BLOCK
from engine.models.base import CausalLM
from engine.models.batch import ForwardBatch
from telemetry.logs import fields

logger = logging.getLogger(__name__)

Points = tuple[tuple[int, float], ...]

BUDGET_S = 4.0
"""Time that measuring may take at most, but for a machine on which one pass takes longer."""

SIZES = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 24, 32, 33, 48, 64, 96, 128)
"""Tokens of the passes: where kernels' tiles end, and behind it."""

_LEAST_ROUNDS, _MOST_ROUNDS = 3, 8
_STEADY = 0.97
"""Rounds go on while one of them finds a size that takes less than such a share of what it took before."""
_DIGEST_BYTES = 8
_VERSION = 4


@dataclass(frozen=True, slots=True)
class Measured:
    """What passes took.

    Attributes:
        points: tokens and seconds.
        is_whole: whether there was time for enough rounds of all sizes.
    """

    points: Points
    is_whole: bool


def calibrate(
    model: CausalLM,
    kv: torch.Tensor,
    settings: str,
    folder: Path,
    *,
    most: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Points:
    """Seconds of passes by their tokens, read from the folder or measured and kept there.

    What was measured while others took the machine's time, as workers that start side by side do, serves this
    once: such a machine does not finish in time.

    Args:
        model: the target, as it will serve.
        kv: its pool; the scratch block is written and zeroed.
        settings: whatever else decides how fast the model is: operations, quantisation, attention backend.
        folder: where measurements are kept. One that cannot be written costs the next start the same time.
        most: tokens of the largest pass that is of interest.
        clock: seconds.
    """
    path = folder / f"pass-cost-{_digest(model, kv, settings, most)}.json"
    known = _read(path)
    if known is not None:
        return known
    measured = measure(model, kv, most=most, clock=clock)
    if not measured.is_whole:
        return measured.points
    try:
        _write(path, measured.points)
    except OSError as error:
        logger.warning("the cost of passes is not kept", extra=fields(path=str(path), reason=str(error)))
    return measured.points


def measure(
    model: CausalLM,
    kv: torch.Tensor,
    *,
    most: int,
    clock: Callable[[], float] = time.perf_counter,
    budget_s: float = BUDGET_S,
) -> Measured:
    """Seconds of passes by their tokens, at least of one token: the least of some rounds, if time allows.

    A round goes through all sizes, so that a machine that is slow for a moment is slow for all of them alike;
    and there are as many as it takes until no size becomes faster, for what is kept here is kept for long.
    Sizes whose passes would outlast what is left of the budget are left out, the largest first.
    """
    sizes = [size for size in SIZES if size <= max(1, most)]
    groups = len(model.config.layer_groups)
    end_s = clock() + budget_s
    least: dict[int, float] = {}
    whole = 0
    with torch.inference_mode():
        # Buffers are allocated and pages touched: that is no cost of a pass.
        model.forward(_pass(1, groups, kv), kv)
        for number in range(1, _MOST_ROUNDS + 1):
            before = dict(least)
            for size in sizes:
                nearest = max((known for known in least if known <= size), default=None)
                expected_s = least[nearest] * size / nearest if nearest else 0.0
                if least and clock() + least.get(size, expected_s) > end_s:
                    break
                begin_s = clock()
                model.forward(_pass(size, groups, kv), kv)
                _wait_for(kv)
                seconds = max(clock() - begin_s, 1e-9)
                least[size] = min(seconds, least.get(size, seconds))
            else:
                whole = number
            is_steady = all(least[size] >= _STEADY * seconds for size, seconds in before.items())
            if number >= _LEAST_ROUNDS and is_steady:
                break
    kv[SCRATCH_BLOCK] = 0
    return Measured(tuple(sorted(least.items())), whole >= _LEAST_ROUNDS)


def _pass(size: int, groups: int, kv: torch.Tensor) -> ForwardBatch:
    """One sequence of `size` tokens, all of whose KV goes to the scratch block, in all layer groups."""
    block_size = kv.shape[4]
    tokens = torch.arange(size, device=kv.device)
    return ForwardBatch(
        token_ids=torch.zeros_like(tokens),
        positions=tokens,
        slots=(SCRATCH_BLOCK * block_size + tokens % block_size).repeat(groups, 1),
        query_starts=(0, size),
        context_lens=(size,),
        block_tables=torch.full((groups, 1, -(-size // block_size)), SCRATCH_BLOCK, device=kv.device),
        logits_rows=tokens,
    )


def _wait_for(kv: torch.Tensor) -> None:
    if kv.device.type != "cpu":
        torch.accelerator.synchronize(kv.device)


def _digest(model: CausalLM, kv: torch.Tensor, settings: str, most: int) -> str:
    """Of all that decides how long a pass takes: shapes, types, machine, threads; not the weights' values."""
    parts = (
        _VERSION,
        SIZES,
        most,
        type(model).__qualname__,
        repr(model.config),
        str(kv.dtype),
        str(kv.device),
        kv.shape[4],
        settings,
        _machine(kv.device),
        torch.__version__,
        torch.get_num_threads(),
    )
    return hashlib.blake2b(repr(parts).encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _machine(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith(("model name", "CPU part")):
            name = line.partition(":")[2].strip()
            break
    return f"{name} x {len(os.sched_getaffinity(0))}"


def _read(path: Path) -> Points | None:
    """What was kept; None where there is nothing, or nothing of use."""
    try:
        points = tuple((int(tokens), float(seconds)) for tokens, seconds in json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return points if points and all(tokens > 0 and seconds > 0 for tokens, seconds in points) else None


def _write(path: Path, points: Points) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    fresh = Path(name)
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(points, file)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
