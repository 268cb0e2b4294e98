"""Waits that are cancelled at each step of the event loop leave neither a member in the group nor a task behind."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

import pytest

from rota.client import Client, Election, NotFound, Permits, Term, WorkItem, sync
from rota.server.runtime.coordinator import LocalCoordinator
from rota.testing.in_memory import InMemoryTransport
from tests.client.stage import a_coordinator
from tests.client.virtual_time import VirtualTimeLoop, in_virtual_time

SESSION_S = 60.0
"""So long that no ghost expires before the test looks."""
GROUP = "g"
GONE_S = 5.0
"""Within this time every wait that was cancelled has left, by then at the latest."""


async def nothing(_subject: Any) -> None:
    await asyncio.sleep(0.2)


MAKES: dict[str, Callable[[Client], Any]] = {
    "election": lambda client: client.leader(GROUP, session_timeout=SESSION_S),
    "lock": lambda client: client.lock(GROUP, session_timeout=SESSION_S),
    "permits": lambda client: client.permits(GROUP, 1, session_timeout=SESSION_S),
    "pool": lambda client: client.worker_pool(GROUP, {"docs": 2}, nothing, session_timeout=SESSION_S),
    "consumer": lambda client: client.consumer(GROUP, {"docs": 2}, session_timeout=SESSION_S),
    "connect worker": lambda client: client.connect_worker(GROUP, [WorkItem("c", 0)], session_timeout=SESSION_S),
    "member": lambda client: client.member(
        GROUP,
        protocol_type="numbers",
        protocols={"v1": b""},
        assign=lambda generation: {each.member_id: b"x" for each in generation.members},
        session_timeout=SESSION_S,
    ),
}
WAITERS = {"lock", "permits"}
"""Kinds for which entering waits until another member has left."""


async def wait(thing: Any) -> None:
    """What a program waits for in its block, by kind."""
    if hasattr(thing, "wait_done"):
        await thing.wait_done()
    elif hasattr(thing, "wait_assigned"):
        await thing.wait_assigned()
    elif hasattr(thing, "terms"):
        async for term in thing.terms():
            async with term:
                await asyncio.sleep(0.05)
            break
        await thing.resign(pause=0.05)
    await asyncio.sleep(0.05)


async def by_calls(make: Callable[[Client], Any], client: Client) -> None:
    thing = make(client)
    await thing.start()
    try:
        await wait(thing)
    finally:
        await thing.close()


async def by_a_block(make: Callable[[Client], Any], client: Client) -> None:
    async with make(client) as thing:
        await wait(thing)


async def by_run(make: Callable[[Client], Any], client: Client) -> None:
    thing = make(client)
    asyncio.get_running_loop().call_later(0.5, thing.stop)
    if isinstance(thing, Election | Permits):
        await thing.run(run_body, handle_signals=False)
    else:
        await thing.run(handle_signals=False)


async def run_body(_term: Term) -> None:
    await asyncio.sleep(0.1)


async def by_the_client(make: Callable[[Client], Any], client: Client) -> None:
    """The client is closed with the member still open."""
    await client.start()
    try:
        await make(client).start()
    finally:
        await client.close()


WAYS = [by_calls, by_a_block, by_run, by_the_client]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", MAKES)
@in_virtual_time
async def test_a_wait_cancelled_at_any_step_leaves_nothing(kind: str, way: Any) -> None:
    async with a_coordinator() as coordinator:
        step = 1
        while not await _is_over_after(step, coordinator, kind, way):
            step += 1
        assert step > 20, "a scenario in which nothing happens proves nothing"


async def _is_over_after(step: int, coordinator: LocalCoordinator, kind: str, way: Any) -> bool:
    """Play the scenario, cancelled at this step of the loop; whether it ended before."""
    holder = Client(InMemoryTransport(coordinator), client_id="holder")
    held = MAKES[kind](holder) if kind in WAITERS else None
    if held is not None:
        await held.start()
        asyncio.get_running_loop().call_later(0.3, lambda: asyncio.ensure_future(held.close()))
    before = asyncio.all_tasks()
    client = Client(InMemoryTransport(coordinator), client_id="waiter")
    task = asyncio.ensure_future(way(MAKES[kind], client))
    cancelled = _cancel_at(step, task)
    with suppress(asyncio.CancelledError, TimeoutError):
        async with asyncio.timeout(GONE_S):
            await task
    assert task.done(), f"cancelled at step {step}, it does not end within {GONE_S} s"
    await _gone(coordinator, before, step)
    return not cancelled.is_set()


def _cancel_at(step: int, task: asyncio.Future[None]) -> asyncio.Event:
    """Cancel a task when the loop has turned so often; the event is set if the task was still under way."""
    loop, cancelled = asyncio.get_running_loop(), asyncio.Event()
    assert isinstance(loop, VirtualTimeLoop)
    turns = count(1)

    def look() -> bool:
        turn = next(turns)
        if task.done():
            loop.between_turns = lambda: False
        elif turn >= step:
            loop.between_turns = lambda: False
            cancelled.set()
            return task.cancel()
        return False

    loop.between_turns = look
    return cancelled


async def _gone(coordinator: LocalCoordinator, before: set[asyncio.Task[Any]], step: int) -> None:
    admin, loop = Client(InMemoryTransport(coordinator)), asyncio.get_running_loop()
    until = loop.time() + GONE_S
    ghosts: Any = None
    while loop.time() < until:
        await asyncio.sleep(0.05)
        with suppress(NotFound):
            ghosts = [each.member_id for each in (await admin.describe_group(GROUP)).members]
        tasks = [each for each in asyncio.all_tasks() - before if "/rota/client/" in repr(each)]
        if not ghosts and not tasks:
            return
    raise AssertionError(f"cancelled at step {step}, it leaves {ghosts} and {tasks}")


def _enter(lock: sync.Permits) -> None:
    with lock:
        pass


@pytest.mark.parametrize("waiting_by", [lambda lock: lock.start(), _enter], ids=["start", "block"])
def test_ctrl_c_while_waiting_for_a_lock_leaves_no_ghost(url: str, waiting_by: Callable[[Any], None]) -> None:
    """The program catches the interrupt, and its client stays open."""
    with sync.connect(url) as holder, sync.connect(url) as waiter:
        lock = holder.lock("nightly")
        lock.start()
        interrupting = threading.Thread(target=_interrupt_when, args=(lambda: _members(holder) == 2,))
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            waiting_by(waiter.lock("nightly"))
        interrupting.join()

        lock.close()
        with holder.lock("nightly", wait_timeout=30.0):
            assert _members(holder) == 1


def _members(client: sync.Client) -> int:
    return len(client.describe_group("nightly").members)


def _interrupt_when(is_so: Callable[[], bool]) -> None:
    pause = threading.Event()
    while not is_so():
        pause.wait(0.05)
    os.kill(os.getpid(), signal.SIGINT)
