"""Names of KV blocks: a hash chained over a block's tokens and its parent.

The first parent is a seed over the model, the tenant's salt, the block size and the hash version, so that
equal tokens under another model or tenant never share a name. BLAKE2b (RFC 7693) cut to 16 bytes: a
cryptographic hash, because a tenant who could make two prompts collide would read another's KV.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

HASH_VERSION = 1
HASH_BYTES = 16
_TOKEN_BYTES = array("I").itemsize


class ChainHasher:
    """Hashes token blocks into a chain, for one model revision and block size.

    Args:
        model: canonical model name with its revision; equal on all workers and routers of a deployment.
        block_size: tokens in a block.
    """

    def __init__(self, model: str, block_size: int) -> None:
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, not {block_size}")
        self._model = model
        self.block_size = block_size

    def seed(self, cache_salt: str) -> bytes:
        """Parent of a sequence's first block."""
        fields = (f"kvrelay/{HASH_VERSION}", self._model, cache_salt, str(self.block_size))
        digest = blake2b(digest_size=HASH_BYTES)
        for field in fields:
            data = field.encode()
            digest.update(len(data).to_bytes(4, "little") + data)
        return digest.digest()

    def extend(self, parent: bytes, token_ids: Sequence[int]) -> bytes:
        """Name of the full block that holds `token_ids` and follows `parent`."""
        if len(token_ids) != self.block_size:
            raise ValueError(f"a block holds {self.block_size} tokens, not {len(token_ids)}")
        return blake2b(parent + array("I", token_ids).tobytes(), digest_size=HASH_BYTES).digest()

    def chain(self, token_ids: Sequence[int], cache_salt: str = "") -> list[bytes]:
        """Names of all full blocks of a sequence, first to last."""
        names: list[bytes] = []
        parent = self.seed(cache_salt)
        # As `extend`, but with the tokens turned into bytes once: this stands before every first token.
        data = array("I", token_ids).tobytes()
        size = _TOKEN_BYTES * self.block_size
        for start in range(0, len(data) - size + 1, size):
            parent = blake2b(parent + data[start : start + size], digest_size=HASH_BYTES).digest()
            names.append(parent)
        return names


def hash_model(model_name: str, revision: str) -> str:
    """Model part of the block hashes, equal on workers and routers."""
    return f"{model_name}@{revision}"
