"""`kvrelay models`: the models on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from cluster.cli.console import OUT, StepReporter, fail, of_files
from cluster.environment import read_environment
from cluster.model_store.store import import_model, imported_models
from engine.models.errors import ModelError

app = typer.Typer(no_args_is_help=True, help="Import models and list them.")


@app.command("import")
def import_(
    source: Annotated[
        str,
        typer.Argument(
            help="Hugging Face folder, hub id (owner/name), GGUF file or demo.", show_default=False
        ),
    ],
    name: Annotated[
        str | None, typer.Option(help="What to call it. Default: after the source.", show_default=False)
    ] = None,
) -> None:
    """Bring a model into KVRELAY_HOME, where --model finds it by name."""
    environment = read_environment()
    with StepReporter() as reporter:
        try:
            entry = import_model(source, environment.home, reporter.model_progress, name)
        except ModelError as error:
            fail(str(error))
        except OSError as error:
            fail(of_files(error, environment))
    OUT.print(f"{entry.name}: {entry.path}", markup=False)


@app.command("list")
def list_() -> None:
    """Names of the models in KVRELAY_HOME."""
    for name in imported_models(read_environment().home):
        OUT.print(name, markup=False)
