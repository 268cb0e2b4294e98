"""All replicas are restarted, one after the other, as a deployment does it: members are notified of nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from rota.client import Client, Member, connect
from rota.client.errors import CoordinatorError
from rota.client.events import MemberEvent
from rota.protocol.messages import OffsetToCommit
from tests.faults.load import spread
from tests.support.cluster import Cluster
from tests.support.cluster_wiring import DirectNetwork
from tests.support.processes import Processes

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.alone,
    # asyncio leaves a socket to the collector where a connection is given up just as it is made.
    pytest.mark.filterwarnings("ignore:unclosed (<socket|transport):ResourceWarning"),
]

GROUPS, MEMBERS_OF_A_GROUP = 20, 10
LEASE_MS = 5_000
SESSION_MS = 45_000
WORK_S = 2.0
DEADLINE_S = 60.0


class Worker:
    """A member that commits as it works. What its user would have to handle ends it and is raised."""

    def __init__(self, member: Member[bytes], number: int) -> None:
        self.member = member
        self.commits = 0
        self.reported: list[MemberEvent[bytes]] = []
        """Everything, the share that it began with first."""
        self._number = number

    async def run(self) -> None:
        async with self.member, asyncio.TaskGroup() as tasks:
            await self.member.wait_assigned()
            tasks.create_task(self._listen())
            while True:
                await self._commit()
                self.commits += 1
                await asyncio.sleep(WORK_S)

    async def _commit(self) -> None:
        try:
            await self.member.commit([OffsetToCommit("t", self._number, self.commits)])
        except CoordinatorError as error:
            error.add_note(f"{self.member.group_id}, {self.member.member_id}: {self.reported}")
            raise

    async def _listen(self) -> None:
        async for event in self.member.events():
            self.reported.append(event)


@asynccontextmanager
async def working(clients: list[Client]) -> AsyncIterator[list[Worker]]:
    """A group for each client, with members that run in the block, from when they all hold one generation."""
    workers = [
        Worker(a_member(client, f"g{group}"), number)
        for group, client in enumerate(clients)
        for number in range(MEMBERS_OF_A_GROUP)
    ]
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(worker.run()) for worker in workers]
        await until(lambda: all(map(agree, generations_of_all(workers))), "every group agrees")
        yield workers
        for task in running:
            task.cancel()


def a_member(client: Client, group_id: str) -> Member[bytes]:
    return client.member(
        group_id,
        protocol_type="worker",
        protocols={"even": b""},
        assign=spread,
        session_timeout=SESSION_MS / 1000,
        # A member that stays to the end must not make the others rebalance when it goes.
        leave_on_close=False,
    )


def generations_of_all(workers: list[Worker]) -> list[set[int]]:
    """By group, the generations of which its members hold a share; -1 where one holds none."""
    found: list[set[int]] = [set() for _ in range(GROUPS)]
    for number, worker in enumerate(workers):
        generation_id = -1 if worker.member.assignment is None else worker.member.generation_id
        found[number // MEMBERS_OF_A_GROUP].add(generation_id)
    return found


def agree(generations: set[int]) -> bool:
    return len(generations) == 1 and -1 not in generations


@pytest.mark.parametrize("scheme", ["http", "grpc", "grpc+stream"])
async def test_200_members_notice_nothing_of_a_rolling_restart(processes: Processes, scheme: str) -> None:
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(Cluster(processes, lease_ms=LEASE_MS, network=DirectNetwork()))
        urls = cluster.urls if scheme == "http" else [f"{scheme}://{at}" for at in cluster.grpc_addresses]
        # Some begin at each replica, as behind a load balancer.
        orders = [urls[n % len(urls) :] + urls[: n % len(urls)] for n in range(GROUPS)]
        clients = [await stack.enter_async_context(connect(order)) for order in orders]
        workers = await stack.enter_async_context(working(clients))
        before = generations_of_all(workers)
        await until(lambda: all(worker.reported for worker in workers), "every member has its share")
        for worker in workers:
            worker.reported.clear()
        for replica in cluster.replicas.values():
            await replica.terminate()
            replica.start()
            await cluster.until_settled()
            await until(progress(workers), "every member has committed since")
        reported = Counter(type(event).__name__ for worker in workers for event in worker.reported)
        after = generations_of_all(workers)

    print(f"{sum(worker.commits for worker in workers)} commits")
    assert after == before
    assert reported == {}


def progress(workers: list[Worker]) -> Callable[[], bool]:
    """Whether each of them has committed since this call, from begin to end."""
    wanted = [worker.commits + 2 for worker in workers]
    return lambda: all(worker.commits >= goal for worker, goal in zip(workers, wanted, strict=True))


async def until(condition: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():  # noqa: ASYNC110 - no event for it
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {DEADLINE_S:g} s: {what}") from None
