from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer import wire
from kv_transfer.types import Identity, KvLayout, KvTicket, LayerGroup
from kvrelay.v1 import prefill_pb2, worker_pb2

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)

GROUPS = st.builds(LayerGroup, TEXT, U32, U32, U32, U32)
IDENTITIES = st.builds(Identity, TEXT, TEXT, TEXT, U32, st.lists(GROUPS, max_size=3).map(tuple), TEXT, U32)
LAYOUTS = st.builds(KvLayout, U32, U32, U32, U64)
NAMES = TEXT.filter(bool)
TICKETS = st.builds(KvTicket, NAMES, TEXT, U64, NAMES, TEXT, LAYOUTS, U32, U32)


@given(IDENTITIES)
def test_identities_come_back(identity: Identity) -> None:
    data = wire.identity_to_wire(identity).SerializeToString()
    assert wire.identity_from_wire(worker_pb2.Identity.FromString(data)) == identity


@given(LAYOUTS)
def test_layouts_come_back(layout: KvLayout) -> None:
    data = wire.layout_to_wire(layout).SerializeToString()
    assert wire.layout_from_wire(worker_pb2.KvLayout.FromString(data)) == layout


@given(TICKETS)
def test_tickets_come_back(ticket: KvTicket) -> None:
    data = wire.ticket_to_wire(ticket).SerializeToString()
    assert wire.ticket_from_wire(prefill_pb2.KvTicket.FromString(data)) == ticket


def _fields(message: type) -> set[str]:
    return {field.name for field in message.DESCRIPTOR.fields}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("ours", "message"),
    [
        (LayerGroup, worker_pb2.LayerGroup),
        (Identity, worker_pb2.Identity),
        (KvLayout, worker_pb2.KvLayout),
        (KvTicket, prefill_pb2.KvTicket),
    ],
)
def test_no_field_is_left_out(ours: type, message: type) -> None:
    assert set(ours.__dataclass_fields__) == _fields(message)  # type: ignore[attr-defined]


def test_a_ticket_without_what_it_needs_is_refused() -> None:
    with pytest.raises(ValueError, match="ticket without ticket_id, endpoint, layout"):
        wire.ticket_from_wire(prefill_pb2.KvTicket(worker_id="prefill-0"))
