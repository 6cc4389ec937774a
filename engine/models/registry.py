"""Finds the family of a model: any module of `engine.models.families` that defines `FAMILY`."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from pathlib import Path

import engine.models.families
from engine.models.checkpoint import read_json
from engine.models.config import ModelConfig
from engine.models.errors import CheckpointError, UnsupportedModelError
from engine.models.family import ConfigSource, Family

CONFIG_FILE = "config.json"
GENERATION_CONFIG_FILE = "generation_config.json"


@cache
def families() -> tuple[Family, ...]:
    """Every family, by model type."""
    modules = (
        importlib.import_module(f"{engine.models.families.__name__}.{module.name}")
        for module in pkgutil.iter_modules(engine.models.families.__path__)
    )
    found = [module.FAMILY for module in modules if isinstance(getattr(module, "FAMILY", None), Family)]
    return tuple(sorted(found, key=lambda family: family.model_type))


def read_config(model_dir: Path, context_length: int = 0) -> ModelConfig:
    """Reads a Hugging Face folder's config.json and the EOS ids of generation_config.json beside it.

    Args:
        model_dir: the folder.
        context_length: most tokens that a context is to have, on which some rotary embeddings depend; 0 is
            the model's own limit.

    Raises:
        CheckpointError: no such folder, or a config that is missing or makes no sense.
        UnsupportedModelError: the family or one of its settings is not supported.
    """
    if not model_dir.is_dir():
        raise CheckpointError(f"model folder {model_dir} does not exist")
    raw = read_json(model_dir / CONFIG_FILE)
    architectures = raw.get("architectures")
    names = [str(name) for name in architectures] if isinstance(architectures, list) else []
    model_type = raw.get("model_type")
    for family in families():
        if family.architectures & set(names) or (not names and family.model_type == model_type):
            break
    else:
        supported = ", ".join(name for family in families() for name in sorted(family.architectures))
        asked = ", ".join(names) or f"model_type {model_type!r}"
        raise UnsupportedModelError(f"{model_dir}: {asked} is not supported; supported are {supported}")
    generation = model_dir / GENERATION_CONFIG_FILE
    eos = _token_ids(raw.get("eos_token_id"), CONFIG_FILE)
    if generation.exists():
        # As in transformers: what generation is told takes precedence over what the model was built with.
        eos = _token_ids(read_json(generation).get("eos_token_id"), GENERATION_CONFIG_FILE) or eos
    try:
        return family.read_config(ConfigSource(raw, eos, context_length))
    except (CheckpointError, UnsupportedModelError) as error:
        raise type(error)(f"{model_dir}: {error}") from None


def _token_ids(value: object, file: str) -> frozenset[int]:
    """`eos_token_id` may be absent, null, an id or a list of ids."""
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or token < 0:
            raise CheckpointError(f"{file}: eos_token_id must be a token id or a list of them, not {value!r}")
    return frozenset(ids)
