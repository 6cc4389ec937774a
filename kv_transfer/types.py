"""What two workers must agree on before KV moves, and what names a piece of KV.

Hub file. Frozen dataclasses and errors only; the wire form of each is in `kv_transfer.wire`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that keep the same history. `sliding_window` is in tokens, 0 for all."""

    name: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    sliding_window: int = 0


@dataclass(frozen=True, slots=True)
class Identity:
    """What makes the KV of two workers interchangeable. Its digest is the fingerprint."""

    model: str
    revision: str
    dtype: str
    block_size: int
    layer_groups: tuple[LayerGroup, ...]
    draft: str
    hash_version: int


@dataclass(frozen=True, slots=True)
class KvLayout:
    """How one worker lays the KV of an identity out. `block_bytes` is the size of one block."""

    tensor_parallel_size: int
    first_head: int
    num_heads: int
    block_bytes: int


@dataclass(frozen=True, slots=True)
class KvTicket:
    """Claim check for KV that a prefill worker is computing. `num_tokens` counts the context's tokens."""

    ticket_id: str
    worker_id: str
    incarnation: int
    endpoint: str
    fingerprint: str
    layout: KvLayout
    num_tokens: int
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class PoolRegion:
    """The one registered allocation of a process: `num_blocks` blocks of `block_bytes` from `address`.

    `owner` keeps the memory alive (a torch tensor).
    """

    address: int
    num_blocks: int
    block_bytes: int
    owner: object


class TransferError(Exception):
    """A read failed and is settled: the destination blocks will not be written any more."""


class TransferTimeoutError(TransferError):
    """A read did not settle in time; its destination blocks are in quarantine."""


class PeerLostError(TransferError):
    """The process that held the blocks is gone."""


class IdentityMismatchError(Exception):
    """The peers' identities differ; the message holds both fingerprints and names the fields."""


class LayoutMismatchError(Exception):
    """The layouts differ and the transport cannot reshard."""


class NoCommonTransportError(Exception):
    """The peers share no transport; the message names what each side has."""
