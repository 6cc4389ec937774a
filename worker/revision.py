"""Which weights these are, without reading all of them."""

from __future__ import annotations

import json
from hashlib import blake2b
from pathlib import Path

from engine.models.checkpoint import read_checkpoint, read_json
from engine.models.registry import CONFIG_FILE

_VERSION = "kvrelay-revision/1"
_DIGEST_BYTES = 16
# Read of each tensor's beginning: enough to tell two trainings of one architecture apart.
_SAMPLE_BYTES = 4096


def model_revision(model_dir: Path) -> str:
    """Digest of a Hugging Face folder: 32 hexadecimal digits.

    Covers config.json and every weight's name, dtype, shape and first bytes (BLAKE2b, RFC 7693). How the
    weights are split into files does not matter.

    Raises:
        CheckpointError: the folder cannot be read.
    """
    digest = blake2b(_VERSION.encode(), digest_size=_DIGEST_BYTES)
    digest.update(json.dumps(read_json(model_dir / CONFIG_FILE), sort_keys=True).encode())
    checkpoint = read_checkpoint(model_dir)
    for name, tensor in sorted(checkpoint.tensors.items()):
        digest.update(json.dumps([name, tensor.dtype, tensor.shape]).encode())
        with tensor.file.open("rb") as file:
            file.seek(tensor.start)
            digest.update(file.read(min(_SAMPLE_BYTES, tensor.end - tensor.start)))
    return digest.hexdigest()


def hash_model(model_name: str, revision: str) -> str:
    """Model part of the block hashes, equal on workers and routers."""
    return f"{model_name}@{revision}"
