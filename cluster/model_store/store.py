"""From what a user calls a model to a folder that the engine can load.

Layout under the home folder: `models/<name>/` for each model, be it the demo, imported or from the hub
(`owner--name`). Folders elsewhere are used where they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cluster.model_store.demo import build_demo
from cluster.model_store.errors import ModelStoreError
from cluster.model_store.gguf import convert
from cluster.model_store.huggingface import copy_folder, download, is_hub_id, validate_folder
from cluster.model_store.install import install
from cluster.model_store.progress import Progress

DEMO = "demo"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model that can be served: the name that users see and its Hugging Face folder."""

    name: str
    path: Path


def resolve(model: str, home: Path, progress: Progress) -> ModelEntry:
    """Finds a model, fetching it where that is possible.

    In this order: `demo`, an existing folder, the name of an imported model, a hub id (`owner/name`).

    Raises:
        ModelError: nothing of that name, saying what was tried; or the model found cannot be served.
    """
    if model == DEMO:
        place = install(_place(home, DEMO), partial(build_demo, progress=progress), progress)
        validate_folder(place)
        return ModelEntry(DEMO, place)
    path = Path(model).expanduser()
    if path.is_dir():
        validate_folder(path)
        return ModelEntry(path.resolve().name, path.resolve())
    if path.is_file():
        raise ModelStoreError(f"{model} is a file: `kvrelay models import {model}` makes a model of it")
    if _NAME.fullmatch(model) and _place(home, model).is_dir():
        validate_folder(_place(home, model))
        return ModelEntry(model, _place(home, model))
    if is_hub_id(model):
        return import_model(model, home, progress)
    imported = ", ".join(imported_models(home)) or "none"
    raise ModelStoreError(
        f"model {model!r} not found: it is not {DEMO!r}, not a folder, not an imported model "
        f"(there are: {imported}), and not a hub id (owner/name)"
    )


def import_model(source: str, home: Path, progress: Progress, name: str | None = None) -> ModelEntry:
    """Brings a model into the home folder: a Hugging Face folder, a GGUF file, a hub id or the demo.

    Args:
        source: path, hub id or `demo`.
        home: the store's home folder.
        progress: told of what is going on.
        name: how the model is to be called; by default as the folder, the file or the hub id.

    Raises:
        ModelError: unknown source, a name that is taken or not allowed, or a model that cannot be served.
    """
    if source == DEMO and name is None:
        return resolve(DEMO, home, progress)
    path = Path(source).expanduser()
    if path.is_dir():
        return _add(
            name or path.resolve().name, home, partial(copy_folder, path, progress=progress), progress
        )
    if path.is_file():
        build = partial(_convert_and_validate, path, progress=progress)
        return _add(name or path.stem, home, build, progress)
    if is_hub_id(source):
        place = _place(home, name or source.replace("/", "--"))
        # A hub id that is there already is found again, so that starting twice needs no network.
        if name is not None:
            return _add(name, home, partial(download, source, progress=progress), progress)
        return ModelEntry(source, install(place, partial(download, source, progress=progress), progress))
    raise ModelStoreError(f"{source!r} is neither a folder, nor a file, nor a hub id (owner/name)")


def imported_models(home: Path) -> list[str]:
    """Names of the models in the home folder."""
    folder = home / "models"
    return (
        sorted(path.name for path in folder.iterdir() if _NAME.fullmatch(path.name))
        if folder.is_dir()
        else []
    )


def _place(home: Path, name: str) -> Path:
    return home / "models" / name


def _add(name: str, home: Path, build: Callable[[Path], None], progress: Progress) -> ModelEntry:
    if not _NAME.fullmatch(name) or name == DEMO:
        raise ModelStoreError(f"{name!r} cannot name a model: choose letters, digits, '.', '_' and '-'")
    place = _place(home, name)
    if place.exists():
        raise ModelStoreError(f"there is a model named {name!r} already: {place}")
    return ModelEntry(name, install(place, build, progress))


def _convert_and_validate(source: Path, folder: Path, progress: Progress) -> None:
    convert(source, folder, progress)
    validate_folder(folder)
