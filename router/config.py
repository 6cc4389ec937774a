"""What a router process is told at start: `python -m router --config FILE.json`."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from router.reasoning.registry import reasoning_parser_names
from router.tools.parsers.registry import tool_parser_names

# As browsers name them: scheme, host and port alone. "*" is every one.
ORIGIN = r"^(\*|https?://[^/\s]+)$"


def _one_of(names: Callable[[], Sequence[str]]) -> AfterValidator:
    def check(value: str) -> str:
        if value not in names():
            raise ValueError(f"needs one of: {', '.join(names())}")
        return value

    return AfterValidator(check)


ToolParserName = Annotated[str, _one_of(tool_parser_names)]
ReasoningParserName = Annotated[str, _one_of(reasoning_parser_names)]


def _unique_name() -> str:
    return f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"


class RouterConfig(BaseModel):
    """Settings of one router. Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    router_id: str = Field(
        default_factory=_unique_name,
        min_length=1,
        description="Unique name of this router; by default the host's, with a random part.",
    )
    served_name: str = Field(description="Model name that clients use.")
    model_dir: Path = Field(description="Hugging Face folder: tokenizer, chat template, config.")
    block_size: int = Field(ge=1, description="Tokens in a KV block, equal to the workers' own.")
    max_model_len: int = Field(ge=1, description="Tokens of prompt and answer together.")
    host: str = Field(default="127.0.0.1", description="Address of both doors.")
    http_port: int = Field(default=8000, ge=0, le=65535, description="OpenAI HTTP; 0 takes a free one.")
    grpc_port: int = Field(default=8001, ge=0, le=65535, description="gRPC; 0 takes a free one.")
    admin_port: int = Field(default=0, ge=0, le=65535, description="RouterAdmin; 0 takes a free one.")
    admin_host: str = Field(
        default="127.0.0.1",
        description="Address of RouterAdmin, which asks for no key: whoever reaches it commands the router.",
    )
    tool_parser: ToolParserName = Field(
        default="auto",
        description="How the model writes tool calls: auto (by its chat template), none, or a file name in "
        "router/tools/parsers.",
    )
    reasoning_parser: ReasoningParserName = Field(
        default="auto",
        description="Whether answers begin with reasoning: auto (by the chat template), none, or think.",
    )
    redis_url: str = Field(default="", description="Prefix index; empty routes by load alone.")
    index_namespace: str = "default"
    policy: str = Field(default="cost", description="File name in router/policies.")
    force_remote_prefill: bool = Field(default=False, description="Never prefill on a decode worker.")
    local_prefill_tokens: int = Field(
        default=64, ge=0, description="Up to so many uncached tokens are prefilled by the decode worker."
    )
    max_running: int = Field(
        default=256, ge=1, description="Generations at once: prompts times choices of all requests."
    )
    max_queued: int = Field(default=256, ge=0, description="Client requests waiting beyond those.")
    max_body_bytes: int = Field(default=4 << 20, ge=1024, description="Largest HTTP body.")
    max_attempts: int = Field(default=4, ge=1, description="Dispatches of one request before it fails.")
    heartbeat_timeout_s: float = Field(default=3.0, gt=0, description="Silence after which a worker is lost.")
    worker_wait_s: float = Field(
        default=20.0, ge=0, description="How long a request that lost its worker waits for another to live."
    )
    drain_timeout_s: float = Field(
        default=30.0, ge=0, description="After SIGTERM: how long running requests may go on."
    )
    api_keys: tuple[str, ...] = Field(default=(), description="Keys that both doors accept; none: open.")
    cors_origins: tuple[Annotated[str, Field(pattern=ORIGIN)], ...] = Field(
        default=(),
        description="Origins (http://host:port) whose pages may call from a browser; * for all.",
    )
    log_level: str = "info"
    log_format: str = "json"
    addresses_file: Path | None = Field(
        default=None, description="Written once listening: JSON with http, grpc, admin (host:port) and pid."
    )
