"""The deployment spec: everything that a deployment is told, in one typed YAML file.

Only settings belong here, each with its default and its bounds. Reading files and options, and the wording
of errors, are `cluster.spec_loading`'s.
"""

from __future__ import annotations

import os
import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from cluster.sizes import MAX_SIZE, parse_size
from cluster.spec_section import Section
from cluster.speculation_spec import SpeculationSpec
from engine.config import DECODE_SLOWDOWN_LIMIT, MAX_DECODE_SLOWDOWN
from router.config import ORIGIN, ReasoningParserName, ToolParserName
from router.policies.registry import policy_names


def _size(value: object) -> object:
    return parse_size(value) if isinstance(value, str) else value


# What Ray counts by itself; the spec has settings of its own for some.
_RAY_OWN_RESOURCES = frozenset({"CPU", "GPU", "memory", "object_store_memory"})
_ENDPOINT = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:/\s\[\]]+):\d{1,5}")

Size = Annotated[int, BeforeValidator(_size), Field(ge=1, le=MAX_SIZE)]
SizeOrNone = Annotated[int, BeforeValidator(_size), Field(ge=0, le=MAX_SIZE)]
# More busy threads than cores only wait for one another; a few times as many harm no trial.
_THREADS_PER_CORE = 4
Port = Annotated[int, Field(ge=0, le=65535)]


class PoolSpec(Section):
    """Workers of one role."""

    replicas: int = Field(default=1, ge=0, le=1024, description="Worker processes.")
    threads: int = Field(
        default=0, ge=0, le=1024, description="Threads of each; 0: one for each core of its machine."
    )
    cpus: float = Field(
        default=0.0, ge=0, description="Ray CPUs that each reserves; 0 lets Ray place it anywhere."
    )
    resources: dict[str, float] = Field(
        default_factory=dict,
        description="Custom Ray resources that each takes, so that only nodes that offer them get one.",
    )
    kv_memory: Size | None = Field(default=None, description="Instead of the deployment's kv_memory.")

    @field_validator("resources")
    @classmethod
    def _resources_that_ray_takes(cls, value: dict[str, float]) -> dict[str, float]:
        for name, amount in value.items():
            if not name or name in _RAY_OWN_RESOURCES:
                raise ValueError(f"{name!r} is no custom resource")
            if amount <= 0 or (amount > 1 and amount % 1):
                raise ValueError(f"{name} needs a number above 0, and above 1 a whole one")
        return value


class DecodePoolSpec(PoolSpec):
    """Decode workers: every answer needs one."""

    replicas: int = Field(default=1, ge=1, le=1024, description="Worker processes.")


class RouterSpec(Section):
    """The front doors."""

    host: str = Field(default="127.0.0.1", min_length=1, description="Address that both doors bind.")
    http_port: Port = Field(default=8000, description="OpenAI-compatible HTTP; 0 takes a free one.")
    grpc_port: Port = Field(default=8001, description="gRPC; 0 takes a free one.")
    policy: str = Field(default="cost", description="File name in router/policies.")
    force_remote_prefill: bool = Field(default=False, description="Never prefill on a decode worker.")
    tool_parser: ToolParserName = Field(
        default="auto",
        description="How the model writes tool calls: auto (by its chat template), none, or a file name in "
        "router/tools/parsers.",
    )
    reasoning_parser: ReasoningParserName = Field(
        default="auto",
        description="Whether answers begin with reasoning: auto (by the chat template), none, or think.",
    )
    max_running: int = Field(
        default=256, ge=1, description="Generations at once: prompts times choices of all requests."
    )
    max_queued: int = Field(default=256, ge=0, description="Client requests waiting beyond those.")
    api_key: str = Field(default="", description="Asked for at both doors; KVRELAY_API_KEY sets it too.")
    cors_origins: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        default=(),
        description="Origins (http://host:port) whose pages may call from a browser; * for all.",
    )
    external: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        default=(),
        description=(
            "host:port of the RouterAdmin of routers that run elsewhere, all addresses of each name: none is "
            "started here, and of this section only max_running counts, the sum over all of them."
        ),
    )

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for origin in value:
            if not re.fullmatch(ORIGIN, origin):
                raise ValueError(f"{origin!r} is neither http(s)://host:port nor *")
        return value

    @field_validator("external")
    @classmethod
    def _host_and_port(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for endpoint in value:
            if not _ENDPOINT.fullmatch(endpoint) or int(endpoint.rpartition(":")[2]) > 65535:
                raise ValueError(f"{endpoint!r} is not host:port")
        return value

    @model_validator(mode="after")
    def _a_port_for_each_door(self) -> RouterSpec:
        if self.http_port == self.grpc_port != 0:
            raise ValueError(f"http_port and grpc_port are both {self.http_port}; each door needs its own")
        return self

    @field_validator("policy")
    @classmethod
    def _known_policy(cls, value: str) -> str:
        if value not in policy_names():
            raise ValueError(f"needs one of: {', '.join(policy_names())}")
        return value


class RedisSpec(Section):
    """Where the prefix index lives."""

    url: str = Field(
        default="",
        pattern=r"^$|^(redis|rediss|unix)://.+",
        description="a redis://, rediss:// or unix:// URL; empty: an embedded server starts",
    )


class RaySpec(Section):
    """Which Ray places the workers."""

    address: str = Field(
        default="",
        pattern=r"^(auto|[^:/]+:\d{1,5})?$",
        description="host:port of an existing cluster's control store, or auto; empty: a local Ray starts.",
    )
    auth: Literal["token", "disabled"] = Field(
        default="token", description="Authentication of a Ray that is started here."
    )
    dashboard_port: int | None = Field(
        default=None, ge=1024, le=65535, description="Of a local Ray; default: 8265 or the next free one."
    )


class LogSpec(Section):
    """What is logged, and how."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["json", "text"] = "json"


class HealthSpec(Section):
    """When a worker counts as hung and is killed, so that Ray starts it anew."""

    heartbeat_s: float = Field(default=0.5, gt=0, le=60, description="Interval of reports.")
    silence_s: float = Field(default=10.0, gt=0, description="Longest silence of a worker process.")
    engine_silence_s: float = Field(
        default=120.0, gt=0, description="Longest silence of an engine that has work: one step at most."
    )
    start_timeout_s: float = Field(default=600.0, gt=0, description="Longest start of a worker.")
    drain_timeout_s: float = Field(default=10.0, ge=0, description="At the end, for running requests.")

    @model_validator(mode="after")
    def _silence_longer_than_interval(self) -> HealthSpec:
        if self.silence_s <= 2 * self.heartbeat_s:
            raise ValueError(
                f"silence_s ({self.silence_s:g}) must be more than twice heartbeat_s ({self.heartbeat_s:g})"
            )
        return self


class DebugSpec(Section):
    """For tests and for hunting defects; slow."""

    check_invariants: bool = Field(default=False, description="After each engine step.")


class DeploymentSpec(Section):
    """One deployment: a model, its workers, its router and what they stand on."""

    name: str = Field(
        default="default", pattern=r"^[a-z0-9][a-z0-9-]{0,39}$", description="lower case, digits, hyphens"
    )
    model: str = Field(
        default="demo", min_length=1, description="'demo', an imported model's name, or a folder."
    )
    served_name: str = Field(default="", description="Name that clients use; default: the model's own.")
    dtype: Literal["float32", "bfloat16"] = "float32"
    quantization: Literal["none", "int8"] = Field(
        default="none", description="int8: a quarter of the memory traffic for about 1% of perplexity."
    )
    ops: Literal["auto", "torch", "cpu"] = Field(
        default="auto",
        description="Who computes: torch, or kernels for the CPU, which auto takes wherever they can be had.",
    )
    block_size: int = Field(default=16, ge=1, le=1024, description="Tokens in a KV block.")
    kv_memory: Size = Field(default=1 << 30, description="KV pool of each worker, for example 1GiB.")
    swap_memory: SizeOrNone = Field(
        default=1 << 29,
        description="Memory of each worker for the KV of preempted sequences, beside the pool; 0: it is "
        "computed again.",
    )
    max_model_len: int = Field(
        default=0,
        ge=0,
        description="Tokens of prompt and answer together, at least 2; 0 takes the model's own limit, or "
        "what the smallest KV pool holds where that is less.",
    )
    max_batched_tokens: int = Field(default=512, ge=1, description="Token budget of one engine step.")
    prefill_chunk: int = Field(default=256, ge=1, description="Most prompt tokens of a sequence in a step.")
    max_decode_slowdown: float = Field(
        default=MAX_DECODE_SLOWDOWN,
        description="A step that also computes prompts takes at most so many times as long as without, while "
        "answers that ran before are being written; 1 to 1000, 0 for no bound.",
    )
    speculation: SpeculationSpec = SpeculationSpec()
    prefill: PoolSpec = PoolSpec()
    decode: DecodePoolSpec = DecodePoolSpec()
    router: RouterSpec = RouterSpec()
    redis: RedisSpec = RedisSpec()
    ray: RaySpec = RaySpec()
    log: LogSpec = LogSpec()
    health: HealthSpec = HealthSpec()
    debug: DebugSpec = DebugSpec()

    @model_validator(mode="after")
    def _resources_can_be_had(self) -> DeploymentSpec:
        for role, pool in (("prefill", self.prefill), ("decode", self.decode)):
            if pool.resources and not self.ray.address:
                raise ValueError(f"{role}.resources needs ray.address: a Ray started here offers none")
        return self

    @model_validator(mode="after")
    def _threads_that_have_cores(self) -> DeploymentSpec:
        most = _THREADS_PER_CORE * len(os.sched_getaffinity(0))
        for role, pool in (("prefill", self.prefill), ("decode", self.decode)):
            # Of machines of a Ray elsewhere nothing is known here.
            if pool.threads > most and not self.ray.address:
                raise ValueError(
                    f"{role}.threads is {pool.threads}, but this machine has "
                    f"{most // _THREADS_PER_CORE} cores; at most {most}, or 0 for one on each core"
                )
        return self

    @field_validator("max_decode_slowdown")
    @classmethod
    def _a_slowdown(cls, value: float) -> float:
        if value != 0 and not 1 <= value <= DECODE_SLOWDOWN_LIMIT:
            raise ValueError(f"needs at least 1, or 0 for no bound, and at most {DECODE_SLOWDOWN_LIMIT}")
        return value

    @field_validator("max_model_len")
    @classmethod
    def _room_for_an_answer(cls, value: int) -> int:
        if value == 1:
            raise ValueError("needs at least 2, for a prompt and its answer, or 0 for the model's own limit")
        return value

    @model_validator(mode="after")
    def _remote_prefill_possible(self) -> DeploymentSpec:
        if self.router.force_remote_prefill and self.prefill.replicas < 1:
            raise ValueError("router.force_remote_prefill needs prefill.replicas of at least 1")
        return self
