from __future__ import annotations

from decode_worker.channels import PrefillChannels
from kv_transfer.types import KvLayout, KvTicket


def ticket(worker_id: str, incarnation: int, endpoint: str) -> KvTicket:
    return KvTicket("t", worker_id, incarnation, endpoint, "", KvLayout(1, 0, 1, 1), 1, 1000)


async def test_a_restarted_worker_leaves_no_channel_behind() -> None:
    """Nobody may have been attached when the process before it died."""
    channels = PrefillChannels()
    channels.stub(ticket("prefill-0", 1, "127.0.0.1:1"))
    channels.stub(ticket("prefill-1", 1, "127.0.0.1:2"))
    channels.stub(ticket("prefill-0", 1, "127.0.0.1:1"))
    assert channels.endpoints == {"127.0.0.1:1", "127.0.0.1:2"}
    channels.stub(ticket("prefill-0", 2, "127.0.0.1:3"))
    assert channels.endpoints == {"127.0.0.1:2", "127.0.0.1:3"}
    # A late ticket of the dead process takes nothing away from the living one.
    channels.stub(ticket("prefill-0", 1, "127.0.0.1:1"))
    assert "127.0.0.1:3" in channels.endpoints
    await channels.close()
    assert not channels.endpoints
