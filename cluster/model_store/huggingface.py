"""Hugging Face folders: on disk and on the hub."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import httpx
from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from cluster.model_store.errors import ModelStoreError
from cluster.model_store.progress import Progress
from engine.models.checkpoint import read_checkpoint
from engine.models.registry import read_config
from engine.models.weights import check_weights
from router.text.chat_template import ChatTemplate
from router.text.errors import ModelFilesError
from router.text.tokenizer import Tokenizer

# What serving needs; anything else on the hub (other formats, pictures) stays there.
_WANTED = ("*.safetensors", "*.json", "*.jinja", "LICENSE*")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def is_hub_id(source: str) -> bool:
    """Whether it has the form `owner/name`."""
    return _HUB_ID.fullmatch(source) is not None


def validate_folder(folder: Path) -> None:
    """Checks config, tokenizer, chat template and the headers of all weights; reads no weight.

    Raises:
        ModelError: what is missing, corrupt or not supported, naming file and weight.
    """
    config = read_config(folder)
    check_weights(read_checkpoint(folder), config)
    try:
        Tokenizer.load(folder)
        ChatTemplate.load(folder)
    except ModelFilesError as error:
        raise ModelStoreError(str(error)) from error


def copy_folder(source: Path, target: Path, progress: Progress) -> None:
    """Copies what serving needs of a valid folder into an existing one. Raises as `validate_folder`."""
    validate_folder(source)
    files = sorted({path for pattern in _WANTED for path in source.glob(pattern) if path.is_file()})
    total = sum(path.stat().st_size for path in files)
    done = 0
    for path in files:
        progress(f"copying {path.name}", done / max(total, 1))
        shutil.copyfile(path, target / path.name)
        done += path.stat().st_size


def download(hub_id: str, target: Path, progress: Progress, endpoint: str | None = None) -> None:
    """Downloads a hub repository into an existing folder and validates it.

    Args:
        hub_id: `owner/name`.
        target: where the files go.
        progress: told once; huggingface_hub draws bars of its own.
        endpoint: address of the hub, None for the usual one.

    Raises:
        ModelError: not found, no access, not reachable, or not a model that can be served.
    """
    progress(f"downloading {hub_id}", None)
    try:
        snapshot_download(hub_id, local_dir=target, allow_patterns=list(_WANTED), endpoint=endpoint)
    except GatedRepoError as error:
        raise ModelStoreError(f"{hub_id} on the hub needs permission: accept its terms and log in") from error
    except RepositoryNotFoundError as error:
        raise ModelStoreError(
            f"{hub_id} is not on the hub, or is private and you are not logged in"
        ) from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, httpx.TransportError) as error:
        raise ModelStoreError(
            f"{hub_id} cannot be fetched, for the hub cannot be reached: {_brief(error)}"
        ) from error
    except (HfHubHTTPError, HFValidationError) as error:
        raise ModelStoreError(f"{hub_id} cannot be fetched from the hub: {_brief(error)}") from error
    # The downloader's bookkeeping, of no use in a folder that is never updated.
    shutil.rmtree(target / ".cache", ignore_errors=True)
    validate_folder(target)


def _brief(error: Exception) -> str:
    """The first line: the rest is advice on the library's own settings."""
    return str(error).strip().partition("\n")[0]
