"""From the deployment spec to what each worker and the router are told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.model_store.store import ModelEntry
from cluster.spec import DeploymentSpec
from cluster.speculation import of_prefill, plan_speculation
from engine.config import EngineConfig
from kvrelay.v1 import worker_pb2
from router.config import RouterConfig

PREFILL, DECODE = "prefill", "decode"


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """One worker, whatever process bears it. Picklable: it travels to the actor.

    Attributes:
        deployment: name of the deployment.
        worker_id: for example "prefill-0".
        role: "prefill" or "decode".
        engine: the engine's settings.
        model_name: canonical name of the model.
        redis_url: of the prefix index.
        host: address to bind; empty for the node's own address.
        cpus: Ray CPUs to reserve.
        resources: custom Ray resources to take.
        heartbeat_s: interval of reports.
        max_queue: requests admitted and not finished, at most.
        log_level: of the process.
        log_format: of the process.
        log_path: file that all its output is appended to; None leaves it where Ray puts it.
    """

    deployment: str
    worker_id: str
    role: str
    engine: EngineConfig
    model_name: str
    redis_url: str
    host: str
    cpus: float
    resources: Mapping[str, float]
    heartbeat_s: float
    max_queue: int
    log_level: str
    log_format: str
    log_path: Path | None

    @property
    def actor_name(self) -> str:
        """As the Ray dashboard shows it."""
        return f"kvrelay:{self.deployment}:{self.worker_id}"


def plan_workers(
    spec: DeploymentSpec, model: ModelEntry, redis_url: str, kernel_cache: Path, log_dir: Path
) -> list[WorkerPlan]:
    """All workers of the deployment, prefill first.

    Args:
        spec: the deployment.
        model: its model.
        redis_url: of the prefix index.
        kernel_cache: folder in which workers keep the CPU kernels that they build.
        log_dir: folder of this machine for their logs; those on other machines have it not.
    """
    # A Ray that is started here is bound to the loopback address, and so are its workers.
    host = "" if spec.ray.address else "127.0.0.1"
    speculation = plan_speculation(spec.speculation, model)
    plans: list[WorkerPlan] = []
    for role, pool in ((PREFILL, spec.prefill), (DECODE, spec.decode)):
        engine = EngineConfig(
            model_dir=model.path,
            dtype=spec.dtype,
            ops=spec.ops,
            quantization=spec.quantization,
            block_size=spec.block_size,
            kv_memory_bytes=pool.kv_memory or spec.kv_memory,
            swap_memory_bytes=spec.swap_memory,
            max_model_len=spec.max_model_len,
            max_decode_slowdown=spec.max_decode_slowdown,
            max_batched_tokens=spec.max_batched_tokens,
            prefill_chunk=min(spec.prefill_chunk, spec.max_batched_tokens),
            # None given: the worker takes what its own machine has (see WorkerActor).
            threads=pool.threads,
            check_invariants=spec.debug.check_invariants,
            kernel_cache=kernel_cache,
            speculation=of_prefill(speculation) if role == PREFILL else speculation,
        )
        plans += [
            WorkerPlan(
                deployment=spec.name,
                worker_id=f"{role}-{number}",
                role=role,
                engine=engine,
                model_name=model.name,
                redis_url=redis_url,
                host=host,
                cpus=pool.cpus,
                resources=pool.resources,
                heartbeat_s=spec.health.heartbeat_s,
                # The routers bound what is admitted; a worker must be able to take all of it.
                max_queue=spec.router.max_running,
                log_level=spec.log.level,
                log_format=spec.log.format,
                log_path=None if spec.ray.address else log_dir / f"{role}-{number}.log",
            )
            for number in range(pool.replicas)
        ]
    return plans


def short_context(spec: DeploymentSpec, workers: Sequence[worker_pb2.WorkerInfo]) -> str:
    """What to tell users where a KV pool holds less than the model's context; empty where none does.

    A limit that the spec sets was meant, and is not told.
    """
    short = [info for info in workers if info.max_model_len < info.model_context_tokens]
    if spec.max_model_len or not short:
        return ""
    info = min(short, key=lambda worker: worker.max_model_len)
    # A pool has a block more than it hands out, and a context as many blocks as there are layer groups.
    blocks = -(-info.model_context_tokens // spec.block_size) * len(info.identity.layer_groups) + 1
    mebibytes = -(-blocks * info.layout.block_bytes // (1 << 20))
    return (
        f"{info.worker_id}: prompt and answer together can have {info.max_model_len} tokens, as many as the "
        f"KV pool holds; for all {info.model_context_tokens} of the model: --kv-memory {mebibytes}MiB"
    )


def plan_router(
    spec: DeploymentSpec,
    model: ModelEntry,
    workers: Sequence[worker_pb2.WorkerInfo],
    *,
    redis_url: str,
    addresses_file: Path,
) -> RouterConfig:
    """The router's settings; `workers` are all of the deployment's, started."""
    return RouterConfig(
        router_id=f"{spec.name}-router-0",
        served_name=served_name(spec, model),
        model_dir=model.path,
        block_size=spec.block_size,
        max_model_len=min(info.max_model_len for info in workers),
        host=spec.router.host,
        http_port=spec.router.http_port,
        grpc_port=spec.router.grpc_port,
        redis_url=redis_url,
        index_namespace=spec.name,
        policy=spec.router.policy,
        tool_parser=spec.router.tool_parser,
        reasoning_parser=spec.router.reasoning_parser,
        force_remote_prefill=spec.router.force_remote_prefill,
        max_running=spec.router.max_running,
        max_queued=spec.router.max_queued,
        drain_timeout_s=spec.health.drain_timeout_s,
        api_keys=(spec.router.api_key,) if spec.router.api_key else (),
        cors_origins=spec.router.cors_origins,
        log_level=spec.log.level,
        log_format=spec.log.format,
        addresses_file=addresses_file,
    )


def served_name(spec: DeploymentSpec, model: ModelEntry) -> str:
    """Name that clients use."""
    return spec.served_name or model.name
