"""`kvrelay generate`: one prompt to a running deployment."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from cluster.cli.console import ERR, OUT, fail
from cluster.cli.deployments import ClientKey, DeploymentName, find_ready, key_for
from cluster.cli.sampling import (
    MaxTokens,
    MinP,
    MoreOptions,
    RepetitionPenalty,
    Seed,
    ShowTimeline,
    Stop,
    Temperature,
    TopK,
    TopP,
    generate_options,
)
from cluster.cli.timeline import print_timeline
from kvrelay import Client, Generation, KvrelayError, Message, Stream


def generate(
    prompt: Annotated[str, typer.Argument(help="What to answer.", show_default=False)],
    max_tokens: MaxTokens = 128,
    temperature: Temperature = None,
    top_p: TopP = None,
    top_k: TopK = None,
    min_p: MinP = None,
    repetition_penalty: RepetitionPenalty = None,
    stop: Stop = None,
    seed: Seed = None,
    option: MoreOptions = None,
    raw: Annotated[bool, typer.Option("--raw", help="Complete the text; no chat template.")] = False,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds. Default: no limit.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The whole result as JSON, at the end.")] = False,
    timeline: ShowTimeline = False,
    api_key: ClientKey = None,
    name: DeploymentName = "default",
) -> None:
    """Send one prompt and stream the answer."""
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
        timeout=timeout,
    )
    state = find_ready(name)
    try:
        with (
            Client(state.grpc_address, api_key=key_for(state, api_key)) as client,
            client.stream(
                prompt if raw else None,
                messages=None if raw else [Message("user", prompt)],
                **options,
            ) as stream,
        ):
            generation = stream.result() if as_json else print_stream(stream)
    except KvrelayError as error:
        fail(str(error))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if as_json:
        OUT.print(result_json(generation), markup=False)
    elif timeline:
        print_timeline(ERR, generation)


def print_stream(stream: Stream) -> Generation:
    """Prints the first choice's text as it comes, then the others', and returns the whole."""
    for chunk in stream:
        if chunk.choice == 0:
            OUT.print(chunk.text, end="", markup=False)
            OUT.file.flush()
    OUT.print()
    generation = stream.result()
    for choice in generation.choices[1:]:
        OUT.print(f"\n[{choice.index}] {choice.text}", markup=False)
    return generation


def result_json(generation: Generation) -> str:
    """The result as one JSON object."""
    return json.dumps(dataclasses.asdict(generation), indent=2, default=_text_of)


def _text_of(token: bytes) -> str:
    """Tokens in log probabilities are bytes, which JSON has not."""
    return token.decode(errors="backslashreplace")
