"""Connectors and tasks among workers: nothing pauses that stays, and a departed worker's work waits for its return."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest

from rota.client import ConnectWorker, WorkItem
from rota.client.connect_worker import WorkRole
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import JoinGroup, PutTopic
from rota.server.runtime.coordinator import LocalCoordinator
from tests.client.stage import Worker, a_coordinator, a_worker, until
from tests.client.virtual_time import in_virtual_time

SESSION_S = 3.0
DELAY_S = 60.0
WORK = [WorkItem("sink"), *(WorkItem("sink", task) for task in range(6))]


@dataclass
class Diary:
    reported: list[tuple[str, tuple[WorkItem, ...]]] = field(default_factory=list)

    def listeners(self) -> dict[str, Any]:
        return {
            "on_assigned": lambda added, _all: self.note("assigned", added),
            "on_revoked": lambda removed: self.note("revoked", removed),
            "on_lost": lambda removed: self.note("lost", removed),
        }

    def note(self, what: str, work: tuple[WorkItem, ...]) -> None:
        if work:
            self.reported.append((what, work))


def connect_worker(
    coordinator: LocalCoordinator, name: str, diary: Diary | None = None, **options: Any
) -> ConnectWorker:
    given: dict[str, Any] = {
        "configured": WORK,
        "url": f"http://{name}",
        "scheduled_rebalance_max_delay": DELAY_S,
        "session_timeout": SESSION_S,
    }
    client = a_worker(coordinator, name).client
    return client.connect_worker("connect", **{**given, **(diary or Diary()).listeners(), **options})


def run_all(workers: Sequence[ConnectWorker], configured: Sequence[WorkItem] = WORK) -> bool:
    """Whether each has its share, and all work is done once."""
    running = [each.assignment or () for each in workers]
    sizes = sorted(map(len, running))
    return sorted(work for share in running for work in share) == sorted(configured) and sizes[-1] - sizes[0] <= 2


@in_virtual_time
async def test_kept_work_goes_on_while_a_newcomer_gets_its_share() -> None:
    diary = Diary()
    async with a_coordinator() as coordinator, connect_worker(coordinator, "a", diary) as first:
        await until(lambda: run_all([first]))
        async with connect_worker(coordinator, "b") as second:
            await until(lambda: run_all([first, second]))
            kept = first.assignment or ()

            (assigned, everything), *rest = diary.reported
            assert (assigned, sorted(everything)) == ("assigned", sorted(WORK))
            assert [what for what, _ in rest] == ["revoked"]
            assert not set(rest[0][1]) & set(kept)


@in_virtual_time
async def test_a_connector_that_is_added_or_removed_is_picked_up() -> None:
    configured = list(WORK)
    options: dict[str, Any] = {"configured": lambda: configured, "refresh_interval": 1.0}
    async with a_coordinator() as coordinator, connect_worker(coordinator, "a", **options) as first:
        async with connect_worker(coordinator, "b", **options) as second:
            await until(lambda: run_all([first, second]))
            configured += [WorkItem("source"), WorkItem("source", 0)]
            await until(lambda: run_all([first, second], configured))
            del configured[: len(WORK)]
            await until(lambda: run_all([first, second], configured))


@in_virtual_time
async def test_a_replaced_static_worker_that_must_stop_blocks_no_other() -> None:
    async with a_coordinator() as coordinator, AsyncExitStack() as stack:
        doomed = a_worker(coordinator, "a")
        former = doomed.client.connect_worker(
            "connect", WORK, group_instance_id="a", session_timeout=60.0, on_revoked=_for_ever
        )
        await stack.enter_async_context(former)
        await until(lambda: run_all([former]))
        newcomer = await stack.enter_async_context(connect_worker(coordinator, "b"))
        await until(lambda: newcomer.assignment == () and former.is_leader)

        doomed.cable.pull()
        again = await stack.enter_async_context(connect_worker(coordinator, "a2", group_instance_id="a"))

        await until(lambda: run_all([again, newcomer]))


@in_virtual_time
async def test_a_replaced_worker_that_must_stop_all_asks_for_one_round() -> None:
    """Its metadata is the same before and after that, for its former process ran the work."""
    configured = [WorkItem("sink", 0), WorkItem("sink", 1)]
    options: dict[str, Any] = {"configured": lambda: configured, "refresh_interval": 0.5}
    async with a_coordinator() as coordinator, AsyncExitStack() as stack:
        leader = await stack.enter_async_context(connect_worker(coordinator, "b", **options))
        await until(lambda: run_all([leader], configured))
        doomed, next_one = a_worker(coordinator, "a"), a_worker(coordinator, "a")

        def a_static(worker: Worker) -> ConnectWorker:
            return worker.client.connect_worker(
                "connect",
                options["configured"],
                group_instance_id="a",
                session_timeout=60.0,
                on_revoked=_for_ever,
            )

        former = await stack.enter_async_context(a_static(doomed))
        await until(lambda: run_all([leader, former], configured) and bool(former.assignment))
        before = leader.generation_id
        del configured[configured.index((former.assignment or ())[0])]
        await until(lambda: leader.generation_id > before and leader.is_leader)
        doomed.cable.pull()

        again = await stack.enter_async_context(a_static(next_one))
        await asyncio.sleep(10)

        assert run_all([leader, again], configured)
        assert sum(isinstance(request, JoinGroup) for request in next_one.cable.requests) <= 5


async def _for_ever(_removed: tuple[WorkItem, ...]) -> None:
    await asyncio.sleep(3_600)


@in_virtual_time
async def test_unreadable_work_fails_the_generation_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = 0

    async def ask() -> list[WorkItem]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ConnectionError("the configuration is away")
        return WORK

    async with a_coordinator() as coordinator, connect_worker(coordinator, "a", configured=ask) as worker:
        await until(lambda: run_all([worker]))

    assert "the configuration is away" in caplog.text


# --- the server assigns --------------------------------------------------------------------------


def served_worker(coordinator: LocalCoordinator, name: str, **options: Any) -> ConnectWorker:
    return connect_worker(coordinator, name, configured=None, connectors="si*", **options)


async def put_sink(coordinator: LocalCoordinator, tasks: int) -> None:
    reply = (await coordinator.call(PutTopic("default", "sink", tasks))).reply
    assert reply.error is ErrorCode.NONE


@in_virtual_time
async def test_workers_share_registered_connectors_of_the_server() -> None:
    diary = Diary()
    async with a_coordinator() as coordinator, AsyncExitStack() as stack:
        await put_sink(coordinator, 6)
        first = await stack.enter_async_context(served_worker(coordinator, "a", **diary.listeners()))
        await until(lambda: run_all([first]))
        second = await stack.enter_async_context(served_worker(coordinator, "b"))
        await until(lambda: run_all([first, second]))
        assert [what for what, _ in diary.reported] == ["assigned", "revoked"], "what stays does not pause"

        await put_sink(coordinator, 8)
        more = [*WORK, WorkItem("sink", 6), WorkItem("sink", 7)]
        await until(lambda: run_all([first, second], more))


# --- how far the configuration was read -----------------------------------------------------------


@in_virtual_time
async def test_a_leader_reads_its_configuration_as_far_as_any_worker() -> None:
    read = {"a": 3, "b": 3}
    listed = {3: WORK[:3], 7: WORK}
    async with a_coordinator() as coordinator, AsyncExitStack() as stack:
        workers = []
        for name in ("a", "b"):
            worker = connect_worker(
                coordinator,
                name,
                configured=lambda: listed[read["a"]],
                config_offset=lambda name=name: read[name],
                refresh_interval=3600.0,
            )
            workers.append(await stack.enter_async_context(worker))
        await until(lambda: run_all(workers, WORK[:3]))

        read["b"] = 7
        workers[1].rejoin("it has read on")
        asyncio.get_running_loop().call_later(2, read.__setitem__, "a", 7)

        await until(lambda: run_all(workers))
        assert [worker.config_offset for worker in workers] == [7, 7]


@in_virtual_time
async def test_a_leader_that_does_not_read_on_fails_the_generation(caplog: pytest.LogCaptureFixture) -> None:
    async with a_coordinator() as coordinator, connect_worker(coordinator, "a", config_offset=3) as leader:
        await until(lambda: run_all([leader]))
        async with connect_worker(coordinator, "b", config_offset=7):
            await asyncio.sleep(20)
    assert "this leader has read its configuration up to 3, another worker up to 7" in caplog.text


def test_a_worker_has_its_own_work_or_the_servers_connectors() -> None:
    for options in ({"configured": None}, {"configured": WORK, "connectors": ("sink",)}):
        with pytest.raises(ValueError, match="either the work that is configured, or the names of connectors"):
            WorkRole(**options)


# --- eager workers, and the way from eager to incremental ------------------------------------------


BOTH = ("incremental", "eager")


@in_virtual_time
async def test_an_eager_peer_that_joins_gets_no_work_that_still_runs() -> None:
    """The others keep their work while they join, for the group was incremental until then."""
    running: dict[WorkItem, str] = {}

    def listeners(name: str) -> dict[str, Any]:
        def begin(added: tuple[WorkItem, ...], _all: tuple[WorkItem, ...]) -> None:
            for work in added:
                assert work not in running, f"{name} is given {work}, which {running[work]} runs"
                running[work] = name

        async def end(removed: tuple[WorkItem, ...]) -> None:
            await asyncio.sleep(1)
            for work in removed:
                assert running.pop(work) == name

        return {"on_assigned": begin, "on_revoked": end}

    async with a_coordinator() as coordinator, AsyncExitStack() as stack:
        workers = []
        for name, protocols in (("a", BOTH), ("b", BOTH), ("c", ("eager",))):
            worker = connect_worker(coordinator, name, protocols=protocols, **listeners(name))
            workers.append(await stack.enter_async_context(worker))
            await until(lambda: run_all(workers))
            # What the callbacks have received follows what the coordinator has assigned.
            await until(lambda: len(running) == len(WORK))
        assert sorted(set(running.values())) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"listed": ()}, "protocols must be some of"),
        ({"listed": ("eager", "eager")}, "each once"),
        ({"listed": ("compatible",)}, "some of incremental, eager"),
        ({"configured": None, "connectors": ("sink",), "listed": ("eager",)}, "do not go with connectors"),
    ],
)
def test_wrong_protocols_of_a_worker_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        WorkRole(**{"configured": WORK, **options})
