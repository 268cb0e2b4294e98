"""Static members restart: nothing moves for that, and topics or work that changed meanwhile are assigned anew."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from rota.client import Client, ConnectWorker, Consumer
from rota.client.topic_lookout import NET_ROUNDS
from rota.core.assignors.work import WorkItem
from rota.server.runtime.coordinator import LocalCoordinator
from tests.client.stage import Cable, a_coordinator, within
from tests.client.virtual_time import in_virtual_time

SESSION_S = 30.0
STRATEGIES = ["range", "roundrobin", "sticky", "cooperative-sticky", "weighted", "rack-aware", "server:sticky"]
LONG_S = 600


@dataclass
class Pods:
    """Consumers `pod-0`, `pod-1`, … of one group; each stops and starts again without leaving."""

    coordinator: LocalCoordinator
    options: dict[str, Any]
    topics: Any = "t"
    stacks: list[AsyncExitStack] = field(default_factory=list)
    members: list[Consumer] = field(default_factory=list)

    async def start(self, number: int, **changed: Any) -> None:
        options = {"session_timeout": SESSION_S, **self.options, **changed}
        client = Client(Cable(self.coordinator), client_id="w")
        consumer = client.consumer(
            "g", options.pop("topics", self.topics), group_instance_id=f"pod-{number}", **options
        )
        stack = AsyncExitStack()
        await stack.enter_async_context(consumer)
        self.stacks[number : number + 1] = [stack]
        self.members[number : number + 1] = [consumer]

    async def stop(self, number: int) -> None:
        await self.stacks[number].aclose()

    async def restart(self, number: int, **changed: Any) -> None:
        await self.stop(number)
        await self.start(number, **changed)
        await self.members[number].wait_assigned()

    @property
    def leader(self) -> int:
        return next(number for number, each in enumerate(self.members) if each.is_leader)

    @property
    def generations(self) -> set[int]:
        return {each.generation_id for each in self.members}

    @property
    def sizes(self) -> list[int]:
        return sorted(len(each.assignment or ()) for each in self.members)

    async def have(self, sizes: list[int], seconds: float = 30) -> None:
        """Wait until their shares have these sizes, and overlap nowhere."""
        await within(seconds, lambda: self.sizes == sizes, lambda: f"{self.sizes}, not {sizes}")
        held = [place for each in self.members for place in each.assignment or ()]
        assert len(held) == len(set(held))


@asynccontextmanager
async def pods(
    count: int, topics: Any = "t", partitions: int = 6, **options: Any
) -> AsyncIterator[tuple[Pods, Client]]:
    """A group at rest, and a client that changes topics and work."""
    async with a_coordinator() as coordinator:
        admin = Client(Cable(coordinator))
        await admin.put_topic("t", partitions)
        group = Pods(coordinator, options, topics)
        try:
            for number in range(count):
                await group.start(number)
                await group.members[number].wait_assigned()
            await within(30, lambda: len(group.generations) == 1 and sum(group.sizes) == partitions, lambda: "unrest")
            await asyncio.sleep(60)
            yield group, admin
        finally:
            for stack in group.stacks:
                await stack.aclose()


@in_virtual_time
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_rolling_restart_is_no_rebalance(strategy: str) -> None:
    async with pods(3, strategy=strategy) as (group, _):
        before, shares = group.generations, [each.assignment for each in group.members]
        for number in range(3):
            await group.restart(number)
        await asyncio.sleep(LONG_S)
        assert group.generations == before
        assert [each.assignment for each in group.members] == shares


@in_virtual_time
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_growth_is_noticed_long_after_a_rolling_restart(strategy: str) -> None:
    async with pods(3, strategy=strategy) as (group, admin):
        for number in range(3):
            await group.restart(number)
        await asyncio.sleep(LONG_S)
        await admin.put_topic("t", 12)
        await group.have([4, 4, 4])


@in_virtual_time
async def test_weights_that_changed_while_the_leader_was_away_count() -> None:
    async with pods(2, strategy="weighted") as (group, admin):
        leader = group.leader
        await group.stop(leader)
        await admin.put_topic("t", 6, {"weights": "50,1,1,1,1,1"})
        await group.start(leader)
        await group.have([1, 5])
        await group.stop(leader)
        await admin.put_topic("t", 6)
        await group.start(leader)
        await group.have([3, 3])


@in_virtual_time
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky", "server:range"])
async def test_a_topic_matched_during_a_leaders_absence_is_assigned(strategy: str) -> None:
    async with pods(3, re.compile("t.*"), strategy=strategy, topics_refresh_interval=2.0) as (group, admin):
        leader = group.leader
        await group.stop(leader)
        await admin.put_topic("t2", 6)
        await group.start(leader)
        await group.have([4, 4, 4])


@in_virtual_time
@pytest.mark.parametrize("counts", [None, {"t": 6, "u": 4}], ids=["registered", "fixed counts"])
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky", "server:sticky"])
async def test_a_restarted_follower_gets_its_other_topics_in_the_end(
    strategy: str, counts: dict[str, int] | None
) -> None:
    options: dict[str, Any] = {"strategy": strategy, "topics_refresh_interval": 2.0, "partitions_per_topic": counts}
    async with pods(2, **options) as (group, admin):
        await admin.put_topic("u", 4)
        await group.restart(1 - group.leader, topics="u")

        def topics() -> list[list[str]]:
            return sorted(sorted({place.topic for place in each.assignment or ()}) for each in group.members)

        await within(NET_ROUNDS * 2 * 1.25 + 5, lambda: topics() == [["t"], ["u"]], lambda: str(topics()))
        assert group.sizes == [4, 6]


# --- connectors and tasks ------------------------------------------------------------------------

WORK = [WorkItem("sink", task) for task in range(4)]


@asynccontextmanager
async def workers(configured: Any, **options: Any) -> AsyncIterator[tuple[list[ConnectWorker], Callable[..., Any]]]:
    """Two static workers at rest, and a function that restarts the leader, at once or after a wait."""
    async with a_coordinator() as coordinator, AsyncExitStack() as last:
        stacks = [AsyncExitStack(), AsyncExitStack()]
        members: list[ConnectWorker] = []

        async def start(number: int, configured: Any) -> ConnectWorker:
            client = Client(Cable(coordinator), client_id="w")
            given = {"session_timeout": SESSION_S, "refresh_interval": 1.0, **options}
            worker = client.connect_worker("g", configured, group_instance_id=f"pod-{number}", **given)
            return await stacks[number].enter_async_context(worker)

        async def restart_leader(configured: Any) -> None:
            number = next(number for number, each in enumerate(members) if each.is_leader)
            await stacks[number].aclose()
            members[number] = await start(number, configured)

        members.extend([await start(number, configured) for number in range(2)])
        for stack in stacks:
            last.push_async_callback(stack.aclose)
        await within(60, lambda: running(members) == sorted(WORK), lambda: str(running(members)))
        await asyncio.sleep(60)
        yield members, restart_leader


def running(members: Sequence[ConnectWorker]) -> list[WorkItem]:
    return sorted(item for each in members for item in each.assignment or ())


@in_virtual_time
@pytest.mark.parametrize("is_function", [False, True], ids=["given", "asked for"])
async def test_a_returning_leader_assigns_only_changed_work_again(is_function: bool) -> None:
    def given(work: list[WorkItem]) -> Any:
        return (lambda: work) if is_function else work

    async with workers(given(WORK)) as (members, restart_leader):
        before = [each.generation_id for each in members]
        await restart_leader(given(WORK))
        await asyncio.sleep(LONG_S)
        assert [each.generation_id for each in members] == before

        more = [*WORK, WorkItem("source", 0), WorkItem("source", 1)]
        await restart_leader(given(more))
        await within(60, lambda: running(members) == sorted(more), lambda: str(running(members)))
        await restart_leader(given(WORK[1:]))
        await within(60, lambda: running(members) == sorted(WORK[1:]), lambda: str(running(members)))


@in_virtual_time
async def test_work_added_long_after_a_leaders_restart_is_assigned() -> None:
    work = list(WORK)
    async with workers(lambda: work) as (members, restart_leader):
        await restart_leader(lambda: work)
        await asyncio.sleep(LONG_S)
        work.append(WorkItem("source", 0))
        await within(60, lambda: running(members) == sorted(work), lambda: str(running(members)))
