"""The wire form of `kv_transfer.types`, both ways. Fields are explained in proto/kvrelay/v1."""

from __future__ import annotations

from kv_transfer.types import Identity, KvLayout, KvTicket, LayerGroup
from kvrelay.v1 import prefill_pb2, worker_pb2


def layer_group_to_wire(group: LayerGroup) -> worker_pb2.LayerGroup:
    """Message for a layer group."""
    return worker_pb2.LayerGroup(
        name=group.name,
        num_layers=group.num_layers,
        num_kv_heads=group.num_kv_heads,
        head_dim=group.head_dim,
        sliding_window=group.sliding_window,
    )


def layer_group_from_wire(message: worker_pb2.LayerGroup) -> LayerGroup:
    """Layer group of a message."""
    return LayerGroup(
        name=message.name,
        num_layers=message.num_layers,
        num_kv_heads=message.num_kv_heads,
        head_dim=message.head_dim,
        sliding_window=message.sliding_window,
    )


def identity_to_wire(identity: Identity) -> worker_pb2.Identity:
    """Message for an identity."""
    return worker_pb2.Identity(
        model=identity.model,
        revision=identity.revision,
        dtype=identity.dtype,
        block_size=identity.block_size,
        layer_groups=[layer_group_to_wire(group) for group in identity.layer_groups],
        draft=identity.draft,
        hash_version=identity.hash_version,
    )


def identity_from_wire(message: worker_pb2.Identity) -> Identity:
    """Identity of a message."""
    return Identity(
        model=message.model,
        revision=message.revision,
        dtype=message.dtype,
        block_size=message.block_size,
        layer_groups=tuple(layer_group_from_wire(group) for group in message.layer_groups),
        draft=message.draft,
        hash_version=message.hash_version,
    )


def layout_to_wire(layout: KvLayout) -> worker_pb2.KvLayout:
    """Message for a layout."""
    return worker_pb2.KvLayout(
        tensor_parallel_size=layout.tensor_parallel_size,
        first_head=layout.first_head,
        num_heads=layout.num_heads,
        block_bytes=layout.block_bytes,
    )


def layout_from_wire(message: worker_pb2.KvLayout) -> KvLayout:
    """Layout of a message."""
    return KvLayout(
        tensor_parallel_size=message.tensor_parallel_size,
        first_head=message.first_head,
        num_heads=message.num_heads,
        block_bytes=message.block_bytes,
    )


def ticket_to_wire(ticket: KvTicket) -> prefill_pb2.KvTicket:
    """Message for a ticket."""
    return prefill_pb2.KvTicket(
        ticket_id=ticket.ticket_id,
        worker_id=ticket.worker_id,
        incarnation=ticket.incarnation,
        endpoint=ticket.endpoint,
        fingerprint=ticket.fingerprint,
        layout=layout_to_wire(ticket.layout),
        num_tokens=ticket.num_tokens,
        ttl_ms=ticket.ttl_ms,
    )


def ticket_from_wire(message: prefill_pb2.KvTicket) -> KvTicket:
    """Ticket of a message. Raises ValueError where it lacks its id, endpoint or layout."""
    missing = [name for name in ("ticket_id", "endpoint") if not getattr(message, name)]
    if not message.HasField("layout"):
        missing.append("layout")
    if missing:
        raise ValueError(f"ticket without {', '.join(missing)}")
    return KvTicket(
        ticket_id=message.ticket_id,
        worker_id=message.worker_id,
        incarnation=message.incarnation,
        endpoint=message.endpoint,
        fingerprint=message.fingerprint,
        layout=layout_from_wire(message.layout),
        num_tokens=message.num_tokens,
        ttl_ms=message.ttl_ms,
    )
