import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from backend.admission import Admission, Ticket
from backend.contract import QueueFull


async def let_tasks_run() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@asynccontextmanager
async def waiting(
    admission: Admission, *tickets: Ticket, served: Callable[[Ticket], None] = lambda _: None
) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Tasks that wait for their turn with the tickets."""

    async def wait(ticket: Ticket) -> None:
        await admission.wait(ticket)
        served(ticket)

    tasks = [asyncio.create_task(wait(ticket)) for ticket in tickets]
    await let_tasks_run()
    yield tasks
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_requests_up_to_the_limit_run_at_once() -> None:
    admission = Admission(2, 5)
    for ticket in [admission.enter(), admission.enter()]:
        await asyncio.wait_for(admission.wait(ticket), 1)
        assert admission.ahead(ticket) == 0
    assert (admission.running, admission.queued) == (2, 0)


async def test_waiting_requests_are_served_in_order_of_arrival() -> None:
    admission = Admission(1, 5)
    running = admission.enter()
    tickets = [admission.enter() for _ in range(4)]
    order: list[Ticket] = []
    # They begin to wait in another order than they arrived in.
    async with waiting(admission, *reversed(tickets), served=order.append):
        assert order == []
        for following in tickets:
            admission.leave(running)
            await let_tasks_run()
            assert order[-1] is following
            running = following
    assert order == tickets


async def test_ahead_counts_down_to_zero_when_served() -> None:
    admission = Admission(2, 5)
    first, second = admission.enter(), admission.enter()
    tickets = [admission.enter() for _ in range(3)]
    assert [admission.ahead(ticket) for ticket in tickets] == [1, 2, 3]
    admission.leave(second)
    assert [admission.ahead(ticket) for ticket in tickets] == [0, 1, 2]
    admission.leave(first)
    assert [admission.ahead(ticket) for ticket in tickets] == [0, 0, 1]
    assert (admission.running, admission.queued) == (2, 1)


async def test_a_newcomer_does_not_overtake_those_who_wait() -> None:
    admission = Admission(1, 5)
    running = admission.enter()
    waiter = admission.enter()
    admission.leave(running)
    newcomer = admission.enter()
    assert (admission.ahead(waiter), admission.ahead(newcomer)) == (0, 1)


async def test_beyond_the_queue_s_size_is_refused_with_a_time_to_retry() -> None:
    admission = Admission(2, 1)
    tickets = [admission.enter() for _ in range(3)]
    with pytest.raises(QueueFull) as refusal:
        admission.enter()
    assert str(refusal.value) == "All 2 places are taken and 1 requests wait; try again in about 15 seconds."
    assert refusal.value.retry_after_s == 15.0
    assert (admission.running, admission.queued) == (2, 1)
    admission.leave(tickets[0])
    assert admission.ahead(admission.enter()) == 1


async def test_the_time_to_retry_follows_how_long_requests_take() -> None:
    admission = Admission(1, 0)
    for _ in range(20):
        admission.leave(admission.enter(), 2.0)
    admission.leave(admission.enter())  # it made nothing, so it tells nothing
    admission.enter()
    with pytest.raises(QueueFull) as refusal:
        admission.enter()
    assert refusal.value.retry_after_s == pytest.approx(2.0, abs=0.05)


async def test_a_request_that_leaves_while_waiting_makes_room_and_moves_others_up() -> None:
    admission = Admission(1, 2)
    admission.enter()
    leaving, staying = admission.enter(), admission.enter()
    admission.leave(leaving)
    assert admission.ahead(staying) == 1
    assert (admission.running, admission.queued) == (1, 1)
    admission.enter()


@pytest.mark.parametrize("leaves_first", [False, True])
async def test_a_cancelled_waiter_never_blocks_the_next(leaves_first: bool) -> None:
    admission = Admission(1, 5)
    running, cancelled, following = admission.enter(), admission.enter(), admission.enter()
    served: list[Ticket] = []
    async with waiting(admission, cancelled, following, served=served.append) as tasks:
        tasks[0].cancel()
        await let_tasks_run()
        first, second = (running, cancelled) if leaves_first else (cancelled, running)
        admission.leave(first)
        admission.leave(second)
        await let_tasks_run()
        assert served == [following]
    admission.leave(following)
    assert (admission.running, admission.queued) == (0, 0)


async def test_a_turn_that_comes_before_waiting_begins_is_not_missed() -> None:
    admission = Admission(1, 1)
    running, following = admission.enter(), admission.enter()
    admission.leave(running)
    await asyncio.wait_for(admission.wait(following), 1)


async def test_leaving_twice_frees_one_place() -> None:
    admission = Admission(1, 5)
    running, _first, second = (admission.enter() for _ in range(3))
    admission.leave(running)
    admission.leave(running)
    assert (admission.running, admission.ahead(second)) == (1, 1)


async def test_many_threads_enter_and_leave_without_losing_a_place() -> None:
    admission = Admission(3, 4)
    most_running: list[int] = []
    refused: list[int] = []

    def visitor() -> None:
        for _ in range(300):
            try:
                ticket = admission.enter()
            except QueueFull:
                refused.append(1)
                continue
            most_running.append(admission.running)
            admission.ahead(ticket)
            admission.leave(ticket)

    threads = [threading.Thread(target=visitor) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most_running) <= 3
    assert len(most_running) + len(refused) == 12 * 300
    assert (admission.running, admission.queued) == (0, 0)


async def test_a_turn_given_by_another_thread_wakes_the_waiter() -> None:
    admission = Admission(1, 1)
    running, following = admission.enter(), admission.enter()
    async with waiting(admission, following) as (task,):
        await asyncio.to_thread(admission.leave, running)
        await asyncio.wait_for(task, 1)
