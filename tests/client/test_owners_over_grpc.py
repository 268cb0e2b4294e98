"""Over gRPC, too, members speak to the replica that owns their group, and its moves cause no rebalance."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import pytest

import rota
from rota.client import Client, Consumer, OffsetToCommit
from rota.client.transports.stream import StreamTransport
from rota.core.replica.leases import preferred_owners
from rota.protocol.ids import shard_of
from rota.server.grpc.server import GrpcServer
from rota.server.observability.metrics import Metrics
from rota.server.runtime.clock import SystemClock
from rota.testing.memory import MemoryTables
from tests.runtime.conftest import NOW
from tests.runtime.test_routing import SHARDS, RunningReplica, a_replica, settled
from tests.support.ports import free_port

DEADLINE_S = 60.0
COMMITS = 5
NAMES = ("r1", "r2")
PARTITIONS = {"work": 2}


@dataclass
class Served:
    """A replica that clients reach over gRPC."""

    running: RunningReplica
    server: GrpcServer
    metrics: Metrics

    def commits(self, code: str = "NONE") -> float:
        """Those that it was asked for by clients, not by its peers."""
        labels = {"operation": "CommitOffsets", "code": code}
        return self.metrics.registry.get_sample_value("rota_requests_total", labels) or 0.0


@dataclass
class Fleet:
    """Up to two replicas at ports of their own."""

    tables: MemoryTables = field(default_factory=lambda: MemoryTables(SystemClock().monotonic_ms))
    ports: dict[str, int] = field(default_factory=lambda: {name: free_port() for name in NAMES})

    def urls(self, scheme: str) -> list[str]:
        return [f"{scheme}://127.0.0.1:{port}" for port in self.ports.values()]

    @asynccontextmanager
    async def replica(self, name: str, *, forward: bool = True) -> AsyncIterator[Served]:
        """Stops in order: clients on its streams are sent elsewhere, and its shards are handed over."""
        async with a_replica(self.tables, name, forward=forward) as running:
            metrics = Metrics()
            server = GrpcServer(running.routed, NOW, metrics=metrics)
            await server.start("127.0.0.1", self.ports[name])
            try:
                await running.local.wait_until_ready()
                yield Served(running, server, metrics)
            finally:
                await server.drain()
                await running.routed.drain()
                await server.stop(0.2)


def a_group_due_to(name: str) -> str:
    names, owners = (f"g{number}" for number in range(1_000)), preferred_owners(NAMES, SHARDS)
    return next(each for each in names if owners[shard_of("default", each, SHARDS)] == name)


async def until_asked(owner: Served, other: Served | None, consumer: Consumer) -> None:
    """Until all commits of a while go to one replica, and to it alone."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            before = owner.commits(), other.commits() if other else 0.0
            for number in range(COMMITS):
                await consumer.commit([OffsetToCommit("work", 0, number)])
            if (owner.commits() - before[0], (other.commits() if other else 0.0) - before[1]) == (COMMITS, 0):
                return


@asynccontextmanager
async def a_consumer(client: Client, group_id: str) -> AsyncIterator[tuple[Consumer, list[str]]]:
    """With each shard that is taken from it again."""
    taken: list[str] = []
    consumer = client.consumer(
        group_id,
        PARTITIONS,
        session_timeout=30.0,
        on_revoked=lambda _: taken.append("revoked"),
        on_lost=lambda _: taken.append("lost"),
    )
    async with consumer:
        await consumer.wait_assigned()
        yield consumer, taken


@pytest.mark.parametrize("scheme", ["grpc", "grpc+stream"])
async def test_calls_follow_the_group_and_no_move_rebalances(scheme: str) -> None:
    fleet, group_id = Fleet(), a_group_due_to("r2")
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(fleet.replica("r1"))
        client = await stack.enter_async_context(rota.connect(fleet.urls(scheme)))
        consumer, taken = await stack.enter_async_context(a_consumer(client, group_id))
        generation_id = consumer.generation_id
        await until_asked(one, None, consumer)
        async with fleet.replica("r2") as two:
            await settled([one.running, two.running])
            await until_asked(two, one, consumer)
        await until_asked(one, None, consumer)

        assert consumer.generation_id == generation_id
        assert taken == []


@pytest.mark.parametrize("scheme", ["grpc", "grpc+stream"])
async def test_who_does_not_forward_is_asked_for_the_owner(scheme: str) -> None:
    fleet = Fleet()
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(fleet.replica(name, forward=False)) for name in NAMES]
        await settled([each.running for each in replicas])
        client = await stack.enter_async_context(rota.connect(fleet.urls(scheme)))
        consumers = [(await stack.enter_async_context(a_consumer(client, a_group_due_to(name))))[0] for name in NAMES]

        async def refused_commits() -> float:
            before = sum(each.commits("NOT_COORDINATOR") for each in replicas)
            for number in range(COMMITS):
                for consumer in consumers:
                    await consumer.commit([OffsetToCommit("work", 0, number)])
            return sum(each.commits("NOT_COORDINATOR") for each in replicas) - before

        async with asyncio.timeout(DEADLINE_S):
            while await refused_commits():
                pass


async def test_members_stream_to_the_owner_of_their_group() -> None:
    fleet = Fleet()
    async with AsyncExitStack() as stack:
        one, two = [await stack.enter_async_context(fleet.replica(name)) for name in NAMES]
        await settled([one.running, two.running])
        transport = StreamTransport(fleet.urls("grpc+stream"))
        client = await stack.enter_async_context(Client(transport))
        first, _ = await stack.enter_async_context(a_consumer(client, a_group_due_to("r1")))
        second, _ = await stack.enter_async_context(a_consumer(client, a_group_due_to("r2")))
        await until_asked(one, two, first)
        await until_asked(two, one, second)


async def test_members_that_leave_with_their_stream_stay_on_one() -> None:
    fleet, group_id = Fleet(), a_group_due_to("r2")
    async with AsyncExitStack() as stack:
        one, two = [await stack.enter_async_context(fleet.replica(name)) for name in NAMES]
        await settled([one.running, two.running])
        first, *_ = urls = fleet.urls("grpc+stream")
        client = await stack.enter_async_context(rota.connect([f"{first}?leave_after_ms=500", *urls[1:]]))
        consumer, _ = await stack.enter_async_context(a_consumer(client, group_id))
        for _ in range(3):
            await until_asked(one, two, consumer)
