"""`kvrelay up`: serves a model until Ctrl-C."""

from __future__ import annotations

from cluster.cli import options
from cluster.cli.serve import Served, print_addresses, serve


async def _announce(served: Served) -> bool:
    print_addresses(served)
    return True


def up(
    spec: options.SpecFile = None,
    model: options.Model = None,
    served_name: options.ServedName = None,
    dtype: options.Dtype = None,
    quantization: options.Quantization = None,
    max_model_len: options.MaxModelLen = None,
    prefill: options.Prefill = None,
    decode: options.Decode = None,
    threads: options.Threads = None,
    kv_memory: options.KvMemory = None,
    swap_memory: options.SwapMemory = None,
    speculation: options.Speculation = None,
    draft_model: options.DraftModel = None,
    block_size: options.BlockSize = None,
    redis: options.RedisUrl = None,
    ray_address: options.RayAddress = None,
    http_port: options.HttpPort = None,
    grpc_port: options.GrpcPort = None,
    host: options.Host = None,
    cors_origin: options.CorsOrigin = None,
    force_remote_prefill: options.ForceRemotePrefill = None,
    tool_parser: options.ToolParser = None,
    reasoning_parser: options.ReasoningParser = None,
    api_key: options.ApiKey = None,
    name: options.Name = None,
) -> None:
    """Serve a model: start Redis, Ray, the workers and the router, and keep them running until Ctrl-C."""
    overrides = options.deployment_overrides(
        name=name,
        model=model,
        served_name=served_name,
        dtype=dtype,
        quantization=quantization,
        max_model_len=max_model_len,
        prefill=prefill,
        decode=decode,
        threads=threads,
        kv_memory=kv_memory,
        swap_memory=swap_memory,
        speculation=speculation,
        draft_model=draft_model,
        block_size=block_size,
        redis=redis,
        ray_address=ray_address,
        http_port=http_port,
        grpc_port=grpc_port,
        host=host,
        cors_origin=cors_origin,
        force_remote_prefill=force_remote_prefill,
        tool_parser=tool_parser,
        reasoning_parser=reasoning_parser,
        api_key=api_key,
    )
    serve(spec, overrides, _announce)
