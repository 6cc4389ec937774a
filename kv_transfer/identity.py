"""Fingerprints of identities, and the refusal of a peer whose KV would mean something else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from hashlib import blake2b

from kv_transfer.types import Identity, IdentityMismatchError, KvLayout, LayerGroup, LayoutMismatchError

_FINGERPRINT_VERSION = "kvrelay-identity/1"
_FINGERPRINT_BYTES = 16


def fingerprint(identity: Identity) -> str:
    """Digest of every field: 32 hexadecimal digits, equal in every process and release.

    BLAKE2b (RFC 7693) over canonical JSON. Fields are taken by name, so their order in the class is free.
    """
    canonical = json.dumps([_FINGERPRINT_VERSION, asdict(identity)], sort_keys=True, separators=(",", ":"))
    return blake2b(canonical.encode(), digest_size=_FINGERPRINT_BYTES).hexdigest()


def require_same(local: Identity, remote: Identity) -> None:
    """Raises IdentityMismatchError with both fingerprints and each differing field's two values."""
    if local == remote:
        return
    raise IdentityMismatchError(
        f"identities differ: local {fingerprint(local)}, remote {fingerprint(remote)}; "
        + "; ".join(_identity_differences(local, remote))
    )


def without_draft(identity: Identity) -> Identity:
    """What a worker's KV is to one that takes no notice of a drafter's share of it."""
    return replace(identity, draft="")


def require_same_layout(local: KvLayout, remote: KvLayout, *, may_be_longer: bool = False) -> None:
    """Raises LayoutMismatchError with each differing field's two values: resharding is not built.

    Args:
        local: one's own.
        remote: of the worker that reads.
        may_be_longer: its blocks may have more at their end, of a drafter that this worker has not.
    """
    if may_be_longer and remote.block_bytes > local.block_bytes:
        remote = replace(remote, block_bytes=local.block_bytes)
    if local == remote:
        return
    raise LayoutMismatchError(
        "layouts differ and resharding is not built: " + "; ".join(_differences("", local, remote))
    )


def _identity_differences(local: Identity, remote: Identity) -> Iterator[str]:
    for difference in _differences("", local, remote):
        if not difference.startswith("layer_groups:"):
            yield difference
    if len(local.layer_groups) != len(remote.layer_groups):
        yield _difference("len(layer_groups)", len(local.layer_groups), len(remote.layer_groups))
        return
    for index, (ours, theirs) in enumerate(zip(local.layer_groups, remote.layer_groups, strict=True)):
        yield from _differences(f"layer_groups[{index}].", ours, theirs)


def _differences(
    prefix: str, local: Identity | KvLayout | LayerGroup, remote: Identity | KvLayout | LayerGroup
) -> Iterator[str]:
    for field in fields(local):
        ours, theirs = getattr(local, field.name), getattr(remote, field.name)
        if ours != theirs:
            yield _difference(prefix + field.name, ours, theirs)


def _difference(name: str, local: object, remote: object) -> str:
    return f"{name}: local {local!r}, remote {remote!r}"
