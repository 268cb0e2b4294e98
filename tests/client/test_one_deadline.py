"""Every stop of the SDK and of the sidecar ends within one deadline, whatever the coordinator and the work do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from rota.agents.shared_work import SharedWork
from rota.agents.sidecar.hooks import Dispatcher
from rota.agents.sidecar.membership import ElectionMembership, PoolMembership
from rota.agents.sidecar.serve import HookRunner
from rota.agents.sidecar.settings import SidecarSettings
from rota.agents.sidecar.status import Change, Changes
from rota.client import Client
from rota.protocol.defaults import HOOKS_TIMEOUT_MS
from tests.client.stage import GROUP, TOPICS, Cable, Worker, a_coordinator, a_worker, until
from tests.client.virtual_time import in_virtual_time

MOST_S = 9.0
SESSION_S = 60.0
COORDINATORS = ("answers", "is silent", "is gone", "answers no commit")
WORKS = ("waits", "looks, and goes on", "looks, and commits", "ignores its cancellation")


@dataclass
class Program:
    """The user's functions: they do what `how` says when they are to end."""

    how: str
    began: bool = False
    released: asyncio.Event = field(default_factory=asyncio.Event)
    """Ends what ignores its cancellation, after the test."""

    async def work(self, subject: Any) -> None:
        """The work on a shard, in a term or with a permit."""
        self.began = True
        if hasattr(subject, "store"):
            subject.store(1)
        if self.how.startswith("looks"):
            await subject.stopping.wait()
        if self.how == "looks, and commits" and hasattr(subject, "commit"):
            await subject.commit(2)
        await self.never_return()

    async def on_revoked(self, _removed: object) -> None:
        await self.never_return()

    async def never_return(self) -> None:
        while not self.released.is_set():
            with suppress(*((asyncio.CancelledError,) if self.how == "ignores its cancellation" else ())):
                await self.released.wait()


Started = tuple[Any, Callable[[], Awaitable[object]]]
"""What is stopped, and its `run`."""


def a_pool(client: Client, program: Program) -> Started:
    pool = client.worker_pool(GROUP, TOPICS, program.work, session_timeout=SESSION_S)
    return pool, lambda: pool.run()


def a_consumer(client: Client, program: Program) -> Started:
    def assigned(_added: object, _held: object) -> None:
        consumer.store("work", 3, 5)
        consumer.commit_soon()
        program.began = True

    consumer = client.consumer(
        GROUP, TOPICS, session_timeout=SESSION_S, on_assigned=assigned, on_revoked=program.on_revoked
    )
    return consumer, consumer.run


def a_connect_worker(client: Client, program: Program) -> Started:
    worker = client.connect_worker(GROUP, (), session_timeout=SESSION_S, on_revoked=program.on_revoked)
    return worker, worker.run


def an_election(client: Client, program: Program) -> Started:
    election = client.leader(GROUP, session_timeout=SESSION_S)
    return election, lambda: election.run(program.work)


def a_lock(client: Client, program: Program) -> Started:
    lock = client.lock(GROUP, session_timeout=SESSION_S)
    return lock, lambda: lock.run(program.work)


def permits(client: Client, program: Program) -> Started:
    found = client.permits(GROUP, 3, session_timeout=SESSION_S)
    return found, lambda: found.run(program.work)


def break_off(cable: Cable, how: str) -> None:
    if how == "is silent":
        cable.is_silent = True
    elif how == "is gone":
        cable.pull()
    elif how == "answers no commit":
        cable.commits_may_go.clear()


def repair(cable: Cable) -> None:
    """Have a stop end that has no deadline: the test that found it must end, too."""
    cable.is_silent = False
    cable.plug_in()
    cable.commits_may_go.set()


async def seconds_of(stopping: Awaitable[object]) -> float:
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    with suppress(TimeoutError):
        async with asyncio.timeout(600):
            await stopping
    return loop.time() - began_at


@pytest.mark.parametrize("way", ["run", "close", "run, stopped twice"])
@pytest.mark.parametrize("make", [a_pool, a_consumer, a_connect_worker, an_election, a_lock, permits])
@in_virtual_time
async def test_a_stop_ends_within_its_deadline_in_every_state(make: Any, way: str) -> None:
    took_s: dict[tuple[str, str], float] = {}
    for coordinator_s, work_s in product(COORDINATORS, WORKS):
        async with a_coordinator() as coordinator:
            worker, program = a_worker(coordinator), Program(work_s)
            subject, run = make(worker.client, program)
            running = asyncio.ensure_future(run())
            member = getattr(subject, "consumer", None) or getattr(subject, "_candidacy", subject)
            member = getattr(member, "member", member)
            if make is a_connect_worker:
                await member.wait_assigned()
            else:
                await until(lambda program=program: program.began)  # type: ignore[misc]
            break_off(worker.cable, coordinator_s)
            try:
                if way == "close":
                    took_s[coordinator_s, work_s] = await seconds_of(subject.close())
                else:
                    subject.stop()
                    if way == "run, stopped twice":
                        asyncio.get_running_loop().call_later(1.0, subject.stop)
                    took_s[coordinator_s, work_s] = await seconds_of(asyncio.wait((running,)))
                if work_s == "ignores its cancellation":
                    assert worker.leaves == 0, "another member could be assigned what is still worked on"
                elif coordinator_s == "answers":
                    assert worker.leaves == 1
            finally:
                repair(worker.cable)
                program.released.set()
            await asyncio.wait((running,))
            running.exception()
    assert max(took_s.values()) < (MOST_S if way != "run, stopped twice" else 4.0), took_s


@pytest.mark.parametrize("make", [a_pool, an_election, a_lock])
@in_virtual_time
async def test_work_that_never_looked_at_stopping_is_cancelled_at_once(make: Any) -> None:
    took_s = []
    for how in ("waits", "looks, and goes on"):
        async with a_coordinator() as coordinator:
            worker, program = a_worker(coordinator), Program(how)
            subject, run = make(worker.client, program)
            running = asyncio.ensure_future(run())
            await until(lambda program=program: program.began)  # type: ignore[misc]
            subject.stop()
            took_s.append(await seconds_of(running))
    assert took_s == [pytest.approx(0.0, abs=0.1), pytest.approx(5.0, abs=0.1)]


# --- the sidecar ------------------------------------------------------------------------------


class HangingHook:
    """A hook that never returns, or does at once."""

    name = "a hook"

    def __init__(self, hangs: bool) -> None:
        self.kinds: list[str] = []
        self._hangs = hangs

    async def deliver(self, change: Change) -> None:
        self.kinds.append(change.kind)
        if self._hangs:
            await asyncio.Event().wait()


@asynccontextmanager
async def a_membership(worker: Worker, hook: HangingHook, works: bool) -> Any:
    """A membership with its hook, as `rota sidecar` has them."""
    shared = SharedWork(topics=("work",)) if works else None
    settings = SidecarSettings(GROUP, Path("unused"), None, shared, session_timeout=60.0)
    changes, dispatcher = Changes("boot"), Dispatcher(hook, lambda: 0.5)
    runner = HookRunner([dispatcher], settings.revoke_timeout)
    membership = (PoolMembership if works else ElectionMembership)(worker.client, settings, changes, runner.settled)
    chores = [asyncio.ensure_future(chore) for chore in (runner.run(changes), dispatcher.run(), membership.run())]
    async with membership.block:
        await until(lambda: membership.holds_something)
        await until(lambda: bool(hook.kinds))
        yield membership
    for chore in chores:
        chore.cancel()
    await asyncio.gather(*chores, return_exceptions=True)


@pytest.mark.parametrize("works", [True, False])
@in_virtual_time
async def test_a_sidecar_stops_within_its_deadline_and_leaves_once(works: bool) -> None:
    took_s: dict[tuple[str, bool], float] = {}
    for coordinator_s, hangs in product(COORDINATORS, (True, False)):
        async with a_coordinator() as coordinator:
            worker, hook = a_worker(coordinator), HangingHook(hangs)
            await worker.client.put_topic("work", 4)
            async with a_membership(worker, hook, works) as membership:
                break_off(worker.cable, coordinator_s)
                took_s[coordinator_s, hangs] = await seconds_of(membership.stop(HOOKS_TIMEOUT_MS / 1000))
            if coordinator_s == "answers":
                assert worker.leaves == 1
            if not hangs:
                assert hook.kinds[-2:] == ["revoked", "draining"]
    assert max(took_s.values()) < MOST_S, took_s
