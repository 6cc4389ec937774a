"""`kvrelay status`: what a running deployment is doing."""

from __future__ import annotations

import json
import time
from typing import Annotated

import grpc
import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from cluster.cli.console import OUT, fail
from cluster.cli.deployments import DeploymentName, find_running
from cluster.state import DeploymentState
from kvrelay.v1 import router_pb2, router_pb2_grpc, worker_pb2

_TIMEOUT_S = 5.0
_INTERVAL_S = 1.0
_ROLES = {worker_pb2.WORKER_ROLE_PREFILL: "prefill", worker_pb2.WORKER_ROLE_DECODE: "decode"}


def status(
    name: DeploymentName = "default",
    as_json: Annotated[bool, typer.Option("--json", help="As one JSON object.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Every second, until Ctrl-C.")] = False,
) -> None:
    """Show workers, load, KV blocks, prefix hit rate and tokens per second."""
    if as_json:
        state = find_running(name)
        OUT.print(json.dumps(as_dict(state, _ask(state)), indent=2), markup=False)
        return
    if not watch:
        state = find_running(name)
        OUT.print(render(state, _ask(state)))
        return
    try:
        with Live(console=OUT, auto_refresh=False) as live:
            while True:
                state = find_running(name)
                live.update(render(state, _ask(state)), refresh=True)
                time.sleep(_INTERVAL_S)
    except KeyboardInterrupt:
        return


def _ask(state: DeploymentState) -> router_pb2.RouterStatus | None:
    """None where the deployment has no router now."""
    if not state.admin_address:
        return None
    with grpc.insecure_channel(state.admin_address) as channel:
        try:
            answer: router_pb2.RouterStatus = router_pb2_grpc.RouterAdminStub(channel).Status(
                router_pb2.StatusRequest(), timeout=_TIMEOUT_S
            )
        except grpc.RpcError as error:
            fail(f"the router at {state.admin_address} does not answer: {error}")
        return answer


def hit_rate(answer: router_pb2.RouterStatus) -> float:
    """Share of all prompt tokens that nobody had to compute, 0 to 1."""
    return answer.cached_tokens_total / answer.prompt_tokens_total if answer.prompt_tokens_total else 0.0


def as_dict(state: DeploymentState, answer: router_pb2.RouterStatus | None) -> dict[str, object]:
    """The status as plain values: the shape of `--json`."""
    report: dict[str, object] = {
        "name": state.name,
        "phase": state.phase,
        "model": state.served_name,
        "openai_url": f"{state.http_url}/v1" if state.http_url else "",
        "grpc_address": state.grpc_address,
        "admin_address": state.admin_address,
        "dashboard_url": state.dashboard_url,
        "troubles": state.troubles,
        "processes": [process.model_dump() for process in (state.supervisor, *state.processes)],
        "router": None,
        "workers": [],
    }
    if answer is None:
        return report
    report["router"] = {
        "id": answer.router_id,
        "queued": answer.queued,
        "running": answer.running,
        "index_available": answer.index_available,
        "requests_total": answer.requests_total,
        "prompt_tokens_total": answer.prompt_tokens_total,
        "cached_tokens_total": answer.cached_tokens_total,
        "completion_tokens_total": answer.completion_tokens_total,
        "prefix_hit_rate": hit_rate(answer),
        "tokens_per_second": answer.tokens_per_second,
        "uptime_s": answer.uptime_s,
    }
    report["workers"] = [_worker_dict(worker) for worker in answer.workers]
    return report


def _worker_dict(worker: router_pb2.WorkerStatus) -> dict[str, object]:
    info, report, stats = worker.info, worker.report, worker.report.stats
    return {
        "id": info.worker_id,
        "role": _ROLES.get(info.role, "unknown"),
        "endpoint": info.endpoint,
        "pid": info.pid,
        "incarnation": info.incarnation,
        "healthy": worker.healthy,
        "draining": report.draining,
        "silent_s": worker.silent_s,
        "metrics_url": info.metrics_url,
        "max_model_len": info.max_model_len,
        "model_context_tokens": info.model_context_tokens,
        "running": stats.running,
        "waiting": stats.waiting,
        "queued_prefill_tokens": stats.queued_prefill_tokens,
        "blocks": {
            "total": stats.blocks_total,
            "free": stats.blocks_free,
            "cached": stats.blocks_cached,
            "used": stats.blocks_pinned,
            "quarantined": stats.blocks_quarantined,
        },
        "leases": stats.leases,
        "prompt_tokens_total": stats.prompt_tokens_total,
        "cached_tokens_total": stats.cached_tokens_total,
        "generated_tokens_total": stats.generated_tokens_total,
        "preemptions_total": stats.preemptions_total,
        "swaps_total": stats.swaps_total,
        "swap_blocks": {"total": stats.swap_blocks_total, "used": stats.swap_blocks_used},
        "swapped_out_blocks_total": stats.swapped_out_blocks_total,
        "swapped_in_blocks_total": stats.swapped_in_blocks_total,
        "transfer_bytes_total": stats.transfer_bytes_total,
        "transfer_seconds_total": stats.transfer_seconds_total,
    }


def render(state: DeploymentState, answer: router_pb2.RouterStatus | None) -> RenderableType:
    """The status as a table."""
    door = state.http_url or state.admin_address or "no router"
    head = f"[bold]{state.name}[/]: " + escape(f"{state.served_name}, {state.phase}, {door}")
    troubles = [f"[yellow]{escape(f'{name}: {why}')}[/]" for name, why in state.troubles.items()]
    if answer is None:
        return Group(head, "the router does not serve now", *troubles)
    load = (
        f"{answer.running} running, {answer.queued} queued, {answer.tokens_per_second:.1f} tokens/s, "
        f"prefix hits {hit_rate(answer):.0%}, {answer.requests_total} requests"
    )
    index = "" if answer.index_available else "[yellow]prefix index away: routing by load alone[/]"
    table = Table(box=None, pad_edge=False)
    for title in ("worker", "state"):
        table.add_column(title, no_wrap=True)
    for title in ("running", "waiting", "free", "cached", "used", "leased", "blocks", "pid"):
        table.add_column(title, justify="right")
    for worker in answer.workers:
        stats = worker.report.stats
        table.add_row(
            escape(worker.info.worker_id),
            _condition(worker),
            str(stats.running),
            str(stats.waiting),
            str(stats.blocks_free),
            str(stats.blocks_cached),
            str(stats.blocks_pinned),
            str(stats.leases),
            str(stats.blocks_total),
            str(worker.info.pid),
        )
    return Group(*filter(None, [head, load, _context(answer), index]), *troubles, table)


def _context(answer: router_pb2.RouterStatus) -> str:
    """Longest context, where it is not the model's own. Empty otherwise, or without workers."""
    shortest = min((worker.info for worker in answer.workers), key=lambda i: i.max_model_len, default=None)
    if shortest is None or shortest.max_model_len >= shortest.model_context_tokens:
        return ""
    return f"contexts of {shortest.max_model_len} of the model's {shortest.model_context_tokens} tokens"


def _condition(worker: router_pb2.WorkerStatus) -> str:
    if not worker.healthy:
        return f"[red]silent for {worker.silent_s:.0f} s[/]"
    return "[yellow]draining[/]" if worker.report.draining else "[green]serves[/]"
