"""Options of the commands that generate."""

from __future__ import annotations

import json
from typing import Annotated, Any, cast, get_type_hints

import typer

from cluster.cli.console import USAGE, fail
from kvrelay import GenerateOptions

MaxTokens = Annotated[int, typer.Option(help="Most tokens of an answer.")]
Temperature = Annotated[
    float | None, typer.Option(help="0 is greedy; up to 2. Default: 1.", show_default=False)
]
TopP = Annotated[
    float | None,
    typer.Option(help="Nucleus sampling, above 0 up to 1. Default: 1, off.", show_default=False),
]
TopK = Annotated[
    int | None, typer.Option(help="Draw among so many tokens. Default: 0, off.", show_default=False)
]
MinP = Annotated[
    float | None,
    typer.Option(
        help="Draw among tokens at least so many times as likely as the likeliest. Default: 0, off.",
        show_default=False,
    ),
]
RepetitionPenalty = Annotated[
    float | None,
    typer.Option(help="Above 0 up to 100; above 1 repeats less. Default: 1, off.", show_default=False),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(help="Text that ends an answer. May be repeated, up to 16.", show_default=False),
]
Seed = Annotated[
    int | None, typer.Option(help="Same seed, same answer. Default: a new one.", show_default=False)
]
MoreOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-o",
        metavar="NAME=VALUE",
        help="Any other option of kvrelay.GenerateOptions, its value as JSON or text: -o n=2. Repeatable.",
        show_default=False,
    ),
]
ShowTimeline = Annotated[bool, typer.Option("--timeline", help="Show where the time went.")]

_NAMES = frozenset(get_type_hints(GenerateOptions))


def generate_options(more: list[str] | None, **given: Any) -> GenerateOptions:
    """The options of one request; None for one that is not given.

    Ends the command with a message for what is no option.
    """
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    for text in more or ():
        name, equals, value = text.partition("=")
        if not equals or name not in _NAMES:
            fail(f"-o {text}: needs NAME=VALUE, with one of {', '.join(sorted(_NAMES))}", USAGE)
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    if isinstance(options.get("logit_bias"), dict):
        # JSON has only strings for keys.
        options["logit_bias"] = {
            int(key) if str(key).isdecimal() else key: bias for key, bias in options["logit_bias"].items()
        }
    # The names are checked here, the values by the SDK.
    return cast(GenerateOptions, options)
