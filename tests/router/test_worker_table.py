from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from kvrelay.v1 import router_pb2, worker_pb2
from kvrelay.v1.router_pb2_grpc import RouterAdminStub, add_RouterAdminServicer_to_server
from prefix_index.hashing import ChainHasher
from router.worker_table import WorkerTable
from tests.router.harness import BLOCK_SIZE, PROMPT, Harness, ScriptedIndex, eventually
from tests.support.fake_workers import FakeDecodeWorker, FakePrefillWorker, PrefillScript, answer_tokens


@pytest.fixture
async def router() -> AsyncIterator[Harness]:
    harness = Harness([FakePrefillWorker("prefill-0")], [FakeDecodeWorker("decode-0")], worker_wait_s=0.3)
    async with harness:
        yield harness


def link_of(router: Harness, worker_id: str):
    link = router.core.table.get(worker_id)
    assert link is not None
    return link


async def test_an_older_table_is_ignored(router: Harness) -> None:
    assert not await router.core.table.set_workers(router_pb2.WorkerTable(version=0))
    assert len(router.core.table.links) == 2
    assert await router.core.table.set_workers(router_pb2.WorkerTable(version=2))
    assert not router.core.table.links
    assert not router.core.dispatcher.ready


async def test_a_worker_that_stays_keeps_its_link(router: Harness) -> None:
    before = router.core.table.links
    await router.push_table()
    assert router.core.table.links == before


async def test_a_restarted_worker_is_another_process(router: Harness) -> None:
    before = link_of(router, "decode-0")
    await router.decodes[0].restart()
    await router.push_table()
    after = link_of(router, "decode-0")
    assert after is not before
    await eventually(lambda: after.available)
    assert (await router.run()).tokens == answer_tokens(PROMPT, 12)


async def test_another_process_behind_the_same_address_is_not_the_worker(router: Harness) -> None:
    link = link_of(router, "prefill-0")
    router.prefills[0].info.incarnation += 1000
    await eventually(lambda: not link.healthy)
    await router.push_table()
    await eventually(lambda: link_of(router, "prefill-0").healthy)


async def test_a_lost_worker_is_unhealthy_at_once(router: Harness) -> None:
    link = link_of(router, "prefill-0")
    await router.prefills[0].stop()
    await eventually(lambda: not link.healthy)
    assert not link.available


async def test_a_silent_worker_is_unhealthy_and_comes_back_by_itself() -> None:
    workers = [FakePrefillWorker("prefill-0")], [FakeDecodeWorker("decode-0")]
    async with Harness(*workers, heartbeat_timeout_s=0.5) as router:
        for worker in router.workers:
            link = link_of(router, worker.info.worker_id)
            worker.hang()
            await eventually(lambda link=link: not link.available)
            assert link.silent_s > 0
            worker.wake()
            await eventually(lambda link=link: link.available)


async def test_a_draining_worker_gets_no_work(router: Harness) -> None:
    router.prefills[0].draining = True
    await eventually(lambda: not link_of(router, "prefill-0").available)
    seen = await router.run()
    assert seen.end is not None
    assert seen.end.timeline.placement_reason.startswith("local: no prefill worker lives")
    assert link_of(router, "prefill-0").healthy


@pytest.mark.parametrize("field", ["block_size", "hash_version"])
async def test_a_worker_whose_blocks_have_other_names_is_refused(router: Harness, field: str) -> None:
    identity = router.decodes[0].info.identity
    setattr(identity, field, getattr(identity, field) + 1)
    await router.decodes[0].restart()
    await router.push_table()
    link = link_of(router, "decode-0")
    await eventually(lambda: link.healthy)
    assert not link.available
    assert str(getattr(identity, field)) in link.refusal
    assert not next(w for w in router.core.admin.status().workers if w.info.worker_id == "decode-0").healthy


async def test_blocks_are_named_as_the_workers_name_them() -> None:
    index = ScriptedIndex()
    workers = [FakePrefillWorker("prefill-0")], [FakeDecodeWorker("decode-0")]
    for worker in (*workers[0], *workers[1]):
        worker.info.identity.revision = "abc"
    async with Harness(*workers, index=index) as router:
        assert router.core.table.hash_model == "fake@abc"
        await router.run()
    assert index.chains[-1] == ChainHasher("fake@abc", BLOCK_SIZE).chain(PROMPT)


@pytest.mark.parametrize("field", ["model", "revision"])
async def test_another_model_is_refused_until_the_one_in_use_is_gone(field: str) -> None:
    decodes = [FakeDecodeWorker(f"decode-{number}") for number in range(3)]
    async with Harness([FakePrefillWorker("prefill-0")], decodes, worker_wait_s=5.0) as router:
        for worker in (decodes[1], decodes[2], router.prefills[0]):
            setattr(worker.info.identity, field, "new")
            await worker.restart()
        await router.push_table()
        # Most have the new one by now; what is in use stays in use.
        assert link_of(router, "decode-0").refusal == ""
        for worker_id in ("decode-1", "decode-2", "prefill-0"):
            assert "new" in link_of(router, worker_id).refusal
        assert (await router.run()).tokens == answer_tokens(PROMPT, 12)
        kept = link_of(router, "decode-1")
        setattr(decodes[0].info.identity, field, "new")
        await decodes[0].restart()
        await router.push_table()
        assert link_of(router, "decode-1") is kept
        assert [link.refusal for link in router.core.table.links] == [""] * 4
        assert "new" in router.core.table.hash_model
        await eventually(lambda: all(link.available for link in router.core.table.links))
        assert (await router.run()).tokens == answer_tokens(PROMPT, 12)


async def test_a_fresh_router_takes_the_model_that_most_workers_have() -> None:
    decodes = [FakeDecodeWorker(f"decode-{number}") for number in range(3)]
    decodes[0].info.identity.revision = "old"
    table = WorkerTable("router-0", 2.0, BLOCK_SIZE)
    infos = [decode.info for decode in decodes]
    for info in infos:
        info.endpoint = "127.0.0.1:1"
    await table.set_workers(router_pb2.WorkerTable(version=1, workers=infos))
    try:
        assert table.hash_model == "fake@"
        assert [bool(link.refusal) for link in table.links] == [True, False, False]
        await table.set_workers(router_pb2.WorkerTable(version=2))
        assert table.hash_model == "fake@", "a router whose workers are all away keeps what it knows"
    finally:
        await table.close()


async def test_reported_load_and_bookings_are_seen(router: Harness) -> None:
    link = link_of(router, "prefill-0")
    router.prefills[0].stats = worker_pb2.WorkerStats(
        queued_prefill_tokens=50, running=3, waiting=2, blocks_free=5, blocks_cached=6, blocks_total=20
    )
    await eventually(lambda: link.report.stats.blocks_total == 20)
    link.book("request-1", 7)
    view = link.view(None)
    assert (view.queued_prefill_tokens, view.running) == (57, 6)
    assert (view.blocks_available, view.blocks_total) == (11, 20)
    await eventually(lambda: link.view(None).queued_prefill_tokens == 50, "the booking ends with the reports")
    link.unbook("request-1")


async def test_load_that_the_reports_show_is_not_booked_in_the_index_too() -> None:
    index = ScriptedIndex()
    prefill = FakePrefillWorker("prefill-0", script=lambda _: PrefillScript(hold=True))
    async with Harness([prefill], [FakeDecodeWorker("decode-0")], index) as router:
        task = asyncio.create_task(router.run())
        await eventually(lambda: index.booked, "booked")
        await eventually(lambda: not index.bookings, "the bookings end with the reports")
        assert not task.done(), "prefill goes on"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_each_router_process_has_a_session_of_its_own() -> None:
    """A router that died must not be taken for its successor: nobody would end its requests."""
    decode = FakeDecodeWorker("decode-0")
    async with Harness([FakePrefillWorker("prefill-0")], [decode]):
        pass
    async with Harness([FakePrefillWorker("prefill-0")], [decode]):
        await eventually(lambda: len(decode.routers) == 2, "another name")


@pytest.mark.parametrize(
    ("worker", "message"),
    [
        (worker_pb2.WorkerInfo(endpoint="127.0.0.1:1", role=worker_pb2.WORKER_ROLE_DECODE), "no worker_id"),
        (worker_pb2.WorkerInfo(worker_id="a", role=worker_pb2.WORKER_ROLE_DECODE), "no endpoint"),
        (worker_pb2.WorkerInfo(worker_id="a", endpoint="127.0.0.1:1"), "worker a has no role"),
    ],
)
async def test_admin_over_grpc(router: Harness, worker: worker_pb2.WorkerInfo, message: str) -> None:
    server = grpc.aio.server()
    add_RouterAdminServicer_to_server(router.core.admin, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            admin = RouterAdminStub(channel)
            with pytest.raises(grpc.aio.AioRpcError, match=message) as caught:
                await admin.SetWorkers(router_pb2.WorkerTable(version=9, workers=[worker]))
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            status = await admin.Status(router_pb2.StatusRequest())
            assert len(status.workers) == 2
            await admin.SetWorkers(router_pb2.WorkerTable(version=9))
            status = await admin.Status(router_pb2.StatusRequest())
            assert not status.workers
            assert status.router_id == "router-0"
            assert status.uptime_s > 0
    finally:
        await server.stop(grace=None)
