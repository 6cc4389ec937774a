"""Names the draft head whose KV lies in the blocks, so that two workers can tell whether it is the same."""

from __future__ import annotations

import hashlib

from engine.speculation.config import SpeculationConfig

_DIGEST_BYTES = 8
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt")


def draft_revision(config: SpeculationConfig) -> str:
    """Method and digest of the head's files, all of their bytes; empty where a method has no head.

    Args:
        config: whose `model` is a folder that a head was loaded from.
    """
    if config.model is None:
        return ""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    files = {path for pattern in ("config.json", *_WEIGHTS) for path in config.model.glob(pattern)}
    for path in sorted(files):
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        with path.open("rb") as file:
            while part := file.read(1 << 20):
                digest.update(part)
    return f"{config.method}:{digest.hexdigest()}"
