"""Options of the commands that generate."""

from __future__ import annotations

from typing import Annotated

import typer

MaxTokens = Annotated[int, typer.Option(help="Most tokens of an answer.")]
Temperature = Annotated[
    float | None, typer.Option(help="0 is greedy; up to 2. Default: 1.", show_default=False)
]
TopP = Annotated[float | None, typer.Option(help="Nucleus sampling. Default: 1, off.", show_default=False)]
Seed = Annotated[
    int | None, typer.Option(help="Same seed, same answer. Default: a new one.", show_default=False)
]
ShowTimeline = Annotated[bool, typer.Option("--timeline", help="Show where the time went.")]
