from __future__ import annotations

import pytest

from prefix_index.index import IndexMatch, IndexPublisher, PrefixIndex, RedisPrefixIndex
from tests.prefix_index.support import Worker, keys_left, names, until


def test_the_protocols_are_met(url: str) -> None:
    index: PrefixIndex = RedisPrefixIndex(url)
    publisher: IndexPublisher = Worker(url, "default", "worker").publisher
    assert index is not None
    assert publisher is not None


async def test_an_empty_index_knows_nobody(index: RedisPrefixIndex) -> None:
    assert await index.match(names(3)) == IndexMatch({}, {}, {})
    assert await index.match([]) == IndexMatch({}, {}, {})
    assert index.available


async def test_leading_blocks_end_at_the_first_that_is_missing(
    index: RedisPrefixIndex, url: str, namespace: str
) -> None:
    # 700 blocks: several growing reads inside one lookup.
    chain = names(700)
    holdings = {
        "all": chain,
        "none": [],
        "others": names(50, "other"),
        "first": chain[:1],
        "no first": chain[1:],
        "31": chain[:31],
        "32": chain[:32],
        "33": chain[:33],
        "gap": chain[:160] + chain[161:],
        "last missing": chain[:-1],
    }
    workers = []
    for worker_id, held in holdings.items():
        worker = Worker(url, namespace, worker_id)
        worker.blocks = dict.fromkeys(held)
        await worker.start()
        workers.append(worker)
    match = await index.match(chain)
    assert match.leading_blocks == {
        "all": 700,
        "none": 0,
        "others": 0,
        "first": 1,
        "no first": 0,
        "31": 31,
        "32": 32,
        "33": 33,
        "gap": 160,
        "last missing": 699,
    }
    assert set(match.booked_tokens.values()) == set(match.booked_requests.values()) == {0}
    assert set((await index.match([])).leading_blocks.values()) == {0}
    for worker in workers:
        await worker.close()
    assert await keys_left(url, namespace) == []


async def test_namespaces_do_not_see_each_other(url: str, namespace: str, index: RedisPrefixIndex) -> None:
    worker = Worker(url, namespace + ".other", "worker")
    await worker.start()
    assert (await index.match(names(1))).leading_blocks == {}
    await worker.close()


async def test_names_of_a_wrong_length_are_refused(index: RedisPrefixIndex) -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        await index.match([b"short"])


async def test_routers_see_each_others_bookings(index: RedisPrefixIndex, url: str, namespace: str) -> None:
    other = RedisPrefixIndex(url, namespace)
    workers = [Worker(url, namespace, worker_id) for worker_id in ("prefill:0", "decode-0")]
    for worker in workers:
        await worker.start()
    await index.book("prefill:0", "request-1", 100, 60.0)
    await other.book("prefill:0", "request-2", 30, 60.0)
    await other.book("decode-0", "request-2", 0, 60.0)
    for router in (index, other):
        match = await router.match([])
        assert match.booked_tokens == {"prefill:0": 130, "decode-0": 0}
        assert match.booked_requests == {"prefill:0": 2, "decode-0": 1}

    await index.book("prefill:0", "request-1", 40, 60.0)  # replaces
    assert (await other.match([])).booked_tokens["prefill:0"] == 70
    await index.unbook("prefill:0", "request-2")  # whoever made it
    await index.unbook("prefill:0", "unknown")
    match = await other.match([])
    assert match.booked_tokens == {"prefill:0": 40, "decode-0": 0}
    assert match.booked_requests == {"prefill:0": 1, "decode-0": 1}

    await index.unbook("prefill:0", "request-1")
    await index.unbook("decode-0", "request-2")
    for worker in workers:
        await worker.close()
    await other.close()
    assert await keys_left(url, namespace) == []


async def test_bookings_end_by_themselves_one_by_one(
    index: RedisPrefixIndex, url: str, namespace: str
) -> None:
    worker = Worker(url, namespace, "worker")
    await worker.start()
    await index.book("worker", "long", 1, 60.0)
    await index.book("worker", "short", 10, 0.05)

    async def only_the_long_one_is_left() -> bool:
        match = await index.match([])
        return (match.booked_tokens["worker"], match.booked_requests["worker"]) == (1, 1)

    await until(only_the_long_one_is_left)
    await worker.close()


async def test_no_booking_is_left_when_the_routers_are_gone(url: str, namespace: str) -> None:
    router = RedisPrefixIndex(url, namespace)
    await router.book("worker", "longest", 1, 0.2)
    await router.book("worker", "shorter", 1, 0.05)
    await router.close()

    async def nothing_is_left() -> bool:
        return await keys_left(url, namespace) == []

    await until(nothing_is_left)


@pytest.mark.parametrize(("tokens", "ttl_s"), [(-1, 1.0), (1, 0.0), (1, -1.0)])
async def test_impossible_bookings_are_refused(index: RedisPrefixIndex, tokens: int, ttl_s: float) -> None:
    with pytest.raises(ValueError, match="cannot book"):
        await index.book("worker", "request", tokens, ttl_s)
