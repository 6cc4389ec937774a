"""The `kvrelay` command's subcommands; `cluster.cli.__main__` runs them."""

from __future__ import annotations

from importlib import metadata
from typing import Annotated

import typer

from cluster.cli import chat, demo, down, generate, models, status, train_draft, up, validate
from cluster.cli.console import OUT

app = typer.Typer(
    name="kvrelay",
    help="Serve a language model with prefill and decode on separate workers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        OUT.print(f"kvrelay {metadata.version('kvrelay-cluster')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    pass


app.command()(up.up)
app.command()(down.down)
app.command()(status.status)
app.command()(chat.chat)
app.command()(generate.generate)
app.command()(demo.demo)
app.command()(validate.validate)
app.command()(train_draft.train_draft)
app.add_typer(models.app, name="models")
