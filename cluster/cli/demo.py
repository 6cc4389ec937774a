"""`kvrelay demo`: a real model, served disaggregated, in one command."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from cluster.cli import options
from cluster.cli.console import OUT
from cluster.cli.serve import Served, print_addresses, serve
from cluster.cli.timeline import print_timeline
from cluster.spec_loading import Override
from kvrelay import AsyncClient, Message

_PROMPT = "Why do large language models need a KV cache? Explain it to a curious child in a few sentences."
_MAX_TOKENS = 96


def demo(
    once: Annotated[bool, typer.Option("--once", help="Stop after the answer.")] = False,
    prompt: Annotated[str, typer.Option(help="What to ask.")] = _PROMPT,
    http_port: options.HttpPort = None,
    grpc_port: options.GrpcPort = None,
    name: options.Name = None,
) -> None:
    """Serve the demo model, ask it something, show where the time went, and go on serving."""
    overrides = [
        Override("name", name, "--name"),
        Override("router.http_port", http_port, "--http-port"),
        Override("router.grpc_port", grpc_port, "--grpc-port"),
        # What is to be seen is the handover.
        Override("router.force_remote_prefill", True, "demo"),
    ]
    serve(None, overrides, partial(_ask, prompt, once))


async def _ask(prompt: str, once: bool, served: Served) -> bool:
    OUT.print()
    OUT.print("[bold]Prompt:[/]", end=" ")
    OUT.print(prompt, markup=False)
    OUT.print("[bold]Answer:[/]", end=" ")
    async with (
        AsyncClient(served.state.grpc_address, api_key=served.spec.router.api_key or None) as client,
        client.stream(
            messages=[Message("user", prompt)], max_tokens=_MAX_TOKENS, temperature=0.0, trace=True
        ) as stream,
    ):
        async for chunk in stream:
            OUT.print(chunk.text, end="", markup=False)
            OUT.file.flush()
        OUT.print()
        print_timeline(OUT, await stream.result())
    if not once:
        print_addresses(served)
    return not once
