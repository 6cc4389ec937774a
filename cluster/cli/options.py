"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cluster.spec_loading import Override
from cluster.speculation_spec import method_names
from router.reasoning.registry import reasoning_parser_names
from router.tools.parsers.registry import tool_parser_names

_MODEL, _CLUSTER, _DOORS = "Model", "Cluster", "Front doors"

SpecFile = Annotated[
    Path | None,
    typer.Argument(metavar="SPEC.yaml", help="Deployment spec. Options overrule it.", show_default=False),
]
Name = Annotated[
    str | None, typer.Option("--name", help="Name of the deployment. Default: default.", show_default=False)
]
Model = Annotated[
    str | None,
    typer.Option(
        help="'demo', an imported model, a Hugging Face folder or hub id. Default: demo.",
        show_default=False,
        rich_help_panel=_MODEL,
    ),
]
ServedName = Annotated[
    str | None,
    typer.Option(help="Name that clients use.", show_default=False, rich_help_panel=_MODEL),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        metavar="float32|bfloat16",
        help="Of weights, activations and KV. Default: float32.",
        show_default=False,
        rich_help_panel=_MODEL,
    ),
]
Quantization = Annotated[
    str | None,
    typer.Option(
        metavar="none|int8",
        help="Of the weights. Default: none.",
        show_default=False,
        rich_help_panel=_MODEL,
    ),
]
MaxModelLen = Annotated[
    int | None,
    typer.Option(
        help="Tokens of prompt and answer together. Default: the model's own limit.",
        show_default=False,
        rich_help_panel=_MODEL,
    ),
]
Prefill = Annotated[
    int | None,
    typer.Option(
        "--prefill", help="Prefill workers. Default: 1.", show_default=False, rich_help_panel=_CLUSTER
    ),
]
Decode = Annotated[
    int | None,
    typer.Option(
        "--decode", help="Decode workers. Default: 1.", show_default=False, rich_help_panel=_CLUSTER
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        help="Threads of each worker. Default: the cores, divided among all workers.",
        show_default=False,
        rich_help_panel=_CLUSTER,
    ),
]
KvMemory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="KV pool of each worker, such as 512MiB. Default: 1GiB.",
        show_default=False,
        rich_help_panel=_CLUSTER,
    ),
]
SwapMemory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Memory of each worker for the KV of preempted requests; 0: it is computed again. "
        "Default: 512MiB.",
        show_default=False,
        rich_help_panel=_CLUSTER,
    ),
]
Speculation = Annotated[
    str | None,
    typer.Option(
        "--speculation",
        metavar="|".join(method_names()),
        help="How tokens are guessed ahead. Default: auto, what serves the demo model fastest, else none.",
        show_default=False,
        rich_help_panel=_CLUSTER,
    ),
]
DraftModel = Annotated[
    str | None,
    typer.Option(
        "--draft-model",
        metavar="FOLDER",
        help="Draft model or head, for methods that need one. Default for the demo model: its own head.",
        show_default=False,
        rich_help_panel=_CLUSTER,
    ),
]
BlockSize = Annotated[
    int | None,
    typer.Option(help="Tokens in a KV block. Default: 16.", show_default=False, rich_help_panel=_CLUSTER),
]
RedisUrl = Annotated[
    str | None,
    typer.Option(
        "--redis",
        metavar="URL",
        help="Redis for the prefix index. Default: an embedded server.",
        show_default=False,
        rich_help_panel=_CLUSTER,
    ),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="An existing Ray cluster. Default: a local Ray.",
        show_default=False,
        rich_help_panel=_CLUSTER,
    ),
]
HttpPort = Annotated[
    int | None,
    typer.Option(
        help="OpenAI-compatible HTTP; 0 takes a free port. Default: 8000.",
        show_default=False,
        rich_help_panel=_DOORS,
    ),
]
GrpcPort = Annotated[
    int | None,
    typer.Option(
        help="gRPC; 0 takes a free port. Default: 8001.", show_default=False, rich_help_panel=_DOORS
    ),
]
Host = Annotated[
    str | None,
    typer.Option(
        help="Address of both doors. Default: 127.0.0.1.", show_default=False, rich_help_panel=_DOORS
    ),
]
CorsOrigin = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ORIGIN",
        help="Origin (http://host:port) whose pages may call from a browser; * for all. May be repeated.",
        show_default=False,
        rich_help_panel=_DOORS,
    ),
]
ForceRemotePrefill = Annotated[
    bool | None,
    typer.Option(
        "--force-remote-prefill",
        help="Never prefill on a decode worker, however short the prompt.",
        show_default=False,
        rich_help_panel=_DOORS,
    ),
]
ToolParser = Annotated[
    str | None,
    typer.Option(
        metavar="|".join(tool_parser_names()),
        help="How the model writes tool calls. Default: auto, by its chat template.",
        show_default=False,
        rich_help_panel=_DOORS,
    ),
]
ReasoningParser = Annotated[
    str | None,
    typer.Option(
        metavar="|".join(reasoning_parser_names()),
        help="Whether its answers begin with reasoning. Default: auto, by its chat template.",
        show_default=False,
        rich_help_panel=_DOORS,
    ),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        metavar="KEY",
        help="Key that both doors ask for. KVRELAY_API_KEY keeps it out of the process list.",
        show_default=False,
        rich_help_panel=_DOORS,
    ),
]


def deployment_overrides(
    *,
    name: str | None,
    model: str | None,
    served_name: str | None,
    dtype: str | None,
    quantization: str | None,
    max_model_len: int | None,
    prefill: int | None,
    decode: int | None,
    threads: int | None,
    kv_memory: str | None,
    swap_memory: str | None,
    speculation: str | None,
    draft_model: str | None,
    block_size: int | None,
    redis: str | None,
    ray_address: str | None,
    http_port: int | None,
    grpc_port: int | None,
    host: str | None,
    cors_origin: list[str] | None,
    force_remote_prefill: bool | None,
    tool_parser: str | None,
    reasoning_parser: str | None,
    api_key: str | None,
) -> list[Override]:
    """The options as settings of the spec. None: not given."""
    return [
        Override("name", name, "--name"),
        Override("model", model, "--model"),
        Override("served_name", served_name, "--served-name"),
        Override("dtype", dtype, "--dtype"),
        Override("quantization", quantization, "--quantization"),
        Override("max_model_len", max_model_len, "--max-model-len"),
        Override("prefill.replicas", prefill, "--prefill"),
        Override("decode.replicas", decode, "--decode"),
        Override("prefill.threads", threads, "--threads"),
        Override("decode.threads", threads, "--threads"),
        Override("kv_memory", kv_memory, "--kv-memory"),
        Override("swap_memory", swap_memory, "--swap-memory"),
        Override("speculation.method", speculation, "--speculation"),
        Override("speculation.model", draft_model, "--draft-model"),
        Override("block_size", block_size, "--block-size"),
        Override("redis.url", redis, "--redis"),
        Override("ray.address", ray_address, "--ray-address"),
        Override("router.http_port", http_port, "--http-port"),
        Override("router.grpc_port", grpc_port, "--grpc-port"),
        Override("router.host", host, "--host"),
        Override("router.cors_origins", cors_origin or None, "--cors-origin"),
        Override("router.force_remote_prefill", force_remote_prefill, "--force-remote-prefill"),
        Override("router.tool_parser", tool_parser, "--tool-parser"),
        Override("router.reasoning_parser", reasoning_parser, "--reasoning-parser"),
        Override("router.api_key", api_key, "--api-key"),
    ]
