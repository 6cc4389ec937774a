from __future__ import annotations

import pytest
from rich.console import Console

from cluster.cli.status import as_dict, render
from cluster.state import DeploymentState, ProcessRecord
from kvrelay.v1 import router_pb2, worker_pb2

STATE = DeploymentState(
    name="default",
    instance="i",
    supervisor=ProcessRecord(name="supervisor", pid=1, start_ticks=1),
    phase="ready",
)


def answer(max_model_len: int) -> router_pb2.RouterStatus:
    info = worker_pb2.WorkerInfo(worker_id="decode-0", max_model_len=max_model_len, model_context_tokens=8192)
    stats = worker_pb2.WorkerStats(
        preemptions_total=5, swaps_total=3, swap_blocks_total=90, swap_blocks_used=7,
        swapped_out_blocks_total=30, swapped_in_blocks_total=20,
    )  # fmt: skip
    worker = router_pb2.WorkerStatus(
        info=info, report=worker_pb2.WorkerReport(worker_id="decode-0", stats=stats), healthy=True
    )
    return router_pb2.RouterStatus(workers=[worker])


def shown(status: router_pb2.RouterStatus, state: DeploymentState = STATE) -> str:
    console = Console(width=160)
    with console.capture() as text:
        console.print(render(state, status))
    return text.get()


@pytest.mark.parametrize(("length", "told"), [(5120, True), (8192, False)])
def test_a_context_that_the_pool_cuts_short_is_shown(length: int, told: bool) -> None:
    assert ("contexts of 5120 of the model's 8192 tokens" in shown(answer(length))) is told


def test_a_name_with_brackets_is_shown_whole() -> None:
    state = STATE.model_copy(update={"served_name": "acme/model[red]"})
    assert "default: acme/model[red], ready" in shown(answer(8192), state)


def test_json_has_what_became_of_the_preempted() -> None:
    workers = as_dict(STATE, answer(5120))["workers"]
    assert isinstance(workers, list)
    worker = workers[0]
    assert (worker["max_model_len"], worker["model_context_tokens"]) == (5120, 8192)
    assert (worker["preemptions_total"], worker["swaps_total"]) == (5, 3)
    assert worker["swap_blocks"] == {"total": 90, "used": 7}
    assert (worker["swapped_out_blocks_total"], worker["swapped_in_blocks_total"]) == (30, 20)


def test_why_a_part_does_not_serve_is_shown() -> None:
    why = "the process ended: killed by Ray's memory monitor [95 %]"
    state = STATE.model_copy(update={"troubles": {"decode-0": why}})
    assert f"decode-0: {why}" in shown(answer(8192), state)
    assert as_dict(state, None)["troubles"] == {"decode-0": why}
