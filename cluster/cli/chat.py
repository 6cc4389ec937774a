"""`kvrelay chat`: a conversation with a running deployment."""

from __future__ import annotations

import sys

import typer
from rich.markup import escape

from cluster.cli.console import ERR, OUT, fail
from cluster.cli.deployments import ClientKey, DeploymentName, find_ready, key_for
from cluster.cli.generate import print_stream
from cluster.cli.sampling import (
    MaxTokens,
    MinP,
    MoreOptions,
    RepetitionPenalty,
    Seed,
    Stop,
    Temperature,
    TopK,
    TopP,
    generate_options,
)
from cluster.cli.timeline import counts_line, print_timeline
from kvrelay import Client, KvrelayError, Message

_HELP = "/timeline shows where the time of the last answer went, /new forgets the conversation, /quit ends."


def chat(
    max_tokens: MaxTokens = 512,
    temperature: Temperature = None,
    top_p: TopP = None,
    top_k: TopK = None,
    min_p: MinP = None,
    repetition_penalty: RepetitionPenalty = None,
    stop: Stop = None,
    seed: Seed = None,
    option: MoreOptions = None,
    system: str | None = typer.Option(None, help="System message.", show_default=False),
    api_key: ClientKey = None,
    name: DeploymentName = "default",
) -> None:
    """Talk to the model; it remembers the conversation. Ctrl-C stops an answer, Ctrl-D ends."""
    options = generate_options(
        option,
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        stop=stop or None,
        seed=seed,
    )
    state = find_ready(name)
    opening = [Message("system", system)] if system else []
    messages = list(opening)
    generation = None
    if sys.stdin.isatty():
        ERR.print(f"[bold]{escape(state.served_name)}[/] [dim]{_HELP}[/]")
    with Client(state.grpc_address, api_key=key_for(state, api_key)) as client:
        while (said := _read_line()) is not None:
            if said in ("/quit", "/exit"):
                break
            if said == "/new":
                messages = list(opening)
                continue
            if said == "/timeline":
                if generation is not None:
                    print_timeline(ERR, generation)
                continue
            if said.startswith("/"):
                ERR.print(f"[dim]{_HELP}[/]")
                continue
            if not said:
                continue
            turn = [*messages, Message("user", said)]
            try:
                with client.stream(messages=turn, **options) as stream:
                    generation = print_stream(stream)
            except KeyboardInterrupt:
                OUT.print()
                ERR.print("[dim]stopped; the question is forgotten[/]")
                continue
            except KvrelayError as error:
                if not sys.stdin.isatty():
                    fail(str(error))
                ERR.print(f"[bold red]error:[/] {escape(str(error))}")
                continue
            messages = [*turn, Message("assistant", generation.text)]
            ERR.print(f"[dim]{counts_line(generation)}[/]")


def _read_line() -> str | None:
    """None at the end of input."""
    try:
        return (input("> ") if sys.stdin.isatty() else input()).strip()
    except (EOFError, KeyboardInterrupt):
        return None
