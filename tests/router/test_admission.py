from __future__ import annotations

import asyncio
import time

import pytest

from router.admission import AdmissionQueue
from router.generation import ErrorKind, GenerationError
from tests.router.harness import eventually


class Client:
    """One client request that stays until told to leave."""

    def __init__(
        self,
        queue: AdmissionQueue,
        name: int,
        entered: list[int],
        deadline: float | None = None,
        places: int = 1,
        priority: int = 0,
    ) -> None:
        self.leave = asyncio.Event()
        self.task = asyncio.create_task(self._stay(queue, name, entered, deadline, places, priority))

    async def _stay(
        self,
        queue: AdmissionQueue,
        name: int,
        entered: list[int],
        deadline: float | None,
        places: int,
        priority: int,
    ) -> float:
        async with queue.admit(deadline, places=places, priority=priority) as admission:
            entered.append(name)
            await self.leave.wait()
            return admission.queue_s


async def test_first_come_first_served() -> None:
    queue, entered = AdmissionQueue(max_running=2, max_queued=3), []
    clients = [Client(queue, name, entered) for name in range(5)]
    await eventually(lambda: queue.queued == 3)
    assert (queue.running, entered) == (2, [0, 1])
    for leaver in range(5):
        clients[leaver].leave.set()
        await clients[leaver].task
        now_in = list(range(5))[: leaver + 3]
        await eventually(lambda now_in=now_in: entered == now_in)
    assert (queue.running, queue.queued) == (0, 0)
    assert clients[4].task.result() > clients[0].task.result() >= 0


async def test_a_lower_priority_comes_first() -> None:
    queue, entered = AdmissionQueue(max_running=4, max_queued=9), []
    running = Client(queue, 0, entered, places=3)
    await eventually(lambda: entered == [0])
    large = [Client(queue, name, entered, places=3, priority=5) for name in (1, 2)]
    await eventually(lambda: queue.queued == 2)
    # It need not wait for the places of those that come after it.
    early = Client(queue, 3, entered, priority=-1)
    await eventually(lambda: entered == [0, 3])
    same = Client(queue, 4, entered, priority=5)
    urgent = Client(queue, 5, entered, priority=4)
    await eventually(lambda: queue.queued == 4)
    for client in (running, early, urgent, *large, same):
        client.leave.set()
        await client.task
    assert entered == [0, 3, 5, 1, 2, 4]
    assert (queue.running, queue.queued) == (0, 0)


async def test_beyond_the_queue_is_overloaded_with_a_time_to_return() -> None:
    queue, entered = AdmissionQueue(max_running=1, max_queued=1), []
    clients = [Client(queue, name, entered) for name in range(2)]
    await eventually(lambda: queue.queued == 1)
    with pytest.raises(GenerationError) as caught:
        async with queue.admit():
            pytest.fail("was admitted")
    assert caught.value.kind is ErrorKind.OVERLOADED
    assert caught.value.retry_after_s == 1.0
    for client in clients:
        client.leave.set()
        await client.task
    async with queue.admit():
        assert queue.running == 1
    assert queue.running == 0


async def test_a_slow_server_asks_for_more_patience() -> None:
    queue, entered = AdmissionQueue(max_running=1, max_queued=6), []
    for _ in range(2):
        async with queue.admit():
            await asyncio.sleep(0.3)
    clients = [Client(queue, name, entered) for name in range(7)]
    await eventually(lambda: queue.queued == 6)
    with pytest.raises(GenerationError) as caught:
        async with queue.admit():
            pytest.fail("was admitted")
    assert caught.value.retry_after_s is not None
    assert 2.0 <= caught.value.retry_after_s <= 60.0
    for client in clients:
        client.leave.set()
    await asyncio.gather(*(client.task for client in clients))


async def test_the_deadline_holds_in_the_queue() -> None:
    queue, entered = AdmissionQueue(max_running=1, max_queued=1), []
    first = Client(queue, 0, entered)
    await eventually(lambda: entered == [0])
    second = Client(queue, 1, entered, deadline=time.time() + 0.05)
    with pytest.raises(GenerationError) as caught:
        await second.task
    assert caught.value.kind is ErrorKind.DEADLINE
    assert queue.queued == 0
    first.leave.set()
    await first.task
    assert queue.running == 0


async def test_cancelled_waiters_leave_no_trace() -> None:
    queue, entered = AdmissionQueue(max_running=1, max_queued=3), []
    clients = [Client(queue, name, entered) for name in range(4)]
    await eventually(lambda: queue.queued == 3)
    clients[2].task.cancel()
    await eventually(lambda: queue.queued == 2)
    # One is handed the place in the very moment in which it is cancelled.
    clients[0].leave.set()
    await clients[0].task
    clients[1].task.cancel()
    await eventually(lambda: entered in ([0, 3], [0, 1, 3]))
    clients[3].leave.set()
    await clients[3].task
    assert (queue.running, queue.queued) == (0, 0)


@pytest.mark.parametrize("first", ["place", "cancel"])
async def test_a_place_handed_to_a_cancelled_waiter_goes_on(first: str) -> None:
    queue = AdmissionQueue(max_running=1, max_queued=2)
    holder = queue.admit()
    await holder.__aenter__()
    entered: list[int] = []
    clients = [Client(queue, name, entered) for name in range(2)]
    await eventually(lambda: queue.queued == 2)
    if first == "cancel":
        clients[0].task.cancel()
    await holder.__aexit__(None, None, None)
    if first == "place":
        clients[0].task.cancel()
    await eventually(lambda: entered == [1])
    clients[1].leave.set()
    await clients[1].task
    assert (queue.running, queue.queued) == (0, 0)


async def test_a_request_takes_a_place_for_each_of_its_generations() -> None:
    queue, entered = AdmissionQueue(max_running=4, max_queued=4), []
    clients = [Client(queue, name, entered, places=places) for name, places in enumerate((3, 2, 1, 9))]
    await eventually(lambda: queue.queued == 3)
    # The third would fit, but the second was there before it.
    assert (entered, queue.running) == ([0], 3)
    clients[0].leave.set()
    await clients[0].task
    await eventually(lambda: entered == [0, 1, 2])
    assert (queue.running, queue.queued) == (3, 1)
    for leaver in (1, 2):
        clients[leaver].leave.set()
        await clients[leaver].task
    # More than there are: it waits for all, and not for ever.
    await eventually(lambda: entered == [0, 1, 2, 3])
    assert queue.running == 4
    clients[3].leave.set()
    await clients[3].task
    assert (queue.running, queue.queued) == (0, 0)


async def test_when_the_first_gives_up_those_behind_it_come_in() -> None:
    queue, entered = AdmissionQueue(max_running=4, max_queued=4), []
    first = Client(queue, 0, entered, places=2)
    await eventually(lambda: entered == [0])
    large = Client(queue, 1, entered, places=4)
    small = [Client(queue, name, entered) for name in (2, 3, 4)]
    await eventually(lambda: queue.queued == 4)
    large.task.cancel()
    await eventually(lambda: entered == [0, 2, 3])
    assert (queue.running, queue.queued) == (4, 1)
    for client in (first, *small):
        client.leave.set()
    await asyncio.gather(first.task, *(client.task for client in small))
    assert (queue.running, queue.queued) == (0, 0)
