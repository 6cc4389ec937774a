"""`kvrelay validate`: checks a deployment spec without starting anything."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cluster.cli.console import FAILURE, OUT, fail
from cluster.spec_loading import SpecError, load_spec


def validate(
    spec: Annotated[Path, typer.Argument(metavar="SPEC.yaml", help="Deployment spec.", show_default=False)],
) -> None:
    """Check a deployment spec: every unknown key and every value out of bounds is named."""
    try:
        loaded = load_spec(spec)
    except SpecError as error:
        fail(str(error), FAILURE)
    OUT.print(
        f"{spec}: valid ({loaded.name}: {loaded.model}, {loaded.prefill.replicas} prefill, "
        f"{loaded.decode.replicas} decode)",
        markup=False,
    )
