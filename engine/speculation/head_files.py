"""Reads the files in which draft heads are published."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from engine.models.checkpoint import INDEX_FILE, SINGLE_FILE, read_checkpoint
from engine.models.errors import CheckpointError

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
"""Types in which weights may be stored."""

_SAFETENSORS = ".safetensors"
_MAX_NAMED = 5

Tensors = Mapping[str, torch.Tensor]


def read_head(folder: Path, names: Sequence[str]) -> dict[str, torch.Tensor]:
    """All tensors of a head.

    Args:
        folder: of the head.
        names: files that it may be in, those of safetensors, their index, or pickles: the first one that is
            there is read.

    Raises:
        CheckpointError: none of them is there, or it is corrupt or holds more than tensors.
    """
    found = next((folder / name for name in names if (folder / name).exists()), None)
    if found is None:
        raise CheckpointError(f"{folder} has none of {', '.join(names)}")
    if found.name in (INDEX_FILE, SINGLE_FILE):
        files = read_checkpoint(folder).files
    elif found.suffix == _SAFETENSORS:
        files = (found,)
    else:
        return _unpickle(found)
    tensors: dict[str, torch.Tensor] = {}
    for path in files:
        try:
            tensors |= load_file(path)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} is corrupt: {error}") from error
    return tensors


def naming(names: Sequence[str]) -> str:
    """Weights in a message: the first few by name."""
    shown = ", ".join(repr(name) for name in names[:_MAX_NAMED])
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"weight{'s' if len(names) > 1 else ''} {shown}{more}"


def _unpickle(path: Path) -> dict[str, torch.Tensor]:
    try:
        # Tensors alone: a pickle may hold any code.
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, OSError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"{path} is corrupt, or holds more than tensors: {error}") from error
    if not isinstance(loaded, dict) or not all(isinstance(value, torch.Tensor) for value in loaded.values()):
        raise CheckpointError(f"{path} is no mapping of names to tensors")
    return loaded
