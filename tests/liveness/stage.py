"""Replicas of one store in virtual time, which reach each other without a network until a test cuts them off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from rota.core.replica.forwarding import NoAnswer
from rota.core.replica.ports import (
    Answer,
    Cancel,
    JournalEvent,
    Renewal,
    Replica,
    ShardClaim,
    ShardOwner,
    StoreUnavailable,
)
from rota.protocol.errors import ErrorCode
from rota.protocol.limits import Limits
from rota.protocol.messages import (
    DescribeGroup,
    DescribeReply,
    Heartbeat,
    JoinGroup,
    JoinReply,
    Protocol,
    Request,
    SyncGroup,
)
from rota.server.liveness.memory import MemoryLiveness
from rota.server.runtime.coordinator import LocalCoordinator, RoutedCoordinator
from rota.testing.memory import MemoryStore, MemoryTables
from tests.client.virtual_time import LoopClock

SESSION_S = 10.0
PUBLISHED_S = 0.2
"""By then, all replicas know an owner's last heartbeats."""
GROUP = ("default", "orders")


class Fleet:
    """One shard, so that one replica owns everything; the others forward to it."""

    def __init__(self, *, lease_s: float = 2.0, shares: bool = True) -> None:
        self.clock = LoopClock()
        self.tables = MemoryTables(self.clock.monotonic_ms)
        self.liveness = MemoryLiveness(self.clock.monotonic_ms) if shares else None
        self.lease_ms = int(lease_s * 1000)
        self.up: dict[str, LocalCoordinator] = {}
        self.is_cut = False
        """No replica reaches another one."""
        self.is_store_away = False

    @asynccontextmanager
    async def replica(self, name: str) -> AsyncIterator[RoutedCoordinator]:
        store = _Store(self)
        await store.open(1)
        local = LocalCoordinator(
            store,
            shard_count=1,
            limits=Limits(initial_rebalance_delay_ms=0),
            clock=self.clock,
            replica_id=name,
            lease_ms=self.lease_ms,
            peers=_Wires(self),
            liveness=self.liveness,
        )
        async with local:
            self.up[name] = local
            try:
                yield RoutedCoordinator(local)
            finally:
                self.up.pop(name, None)

    async def kill(self, replica: RoutedCoordinator) -> None:
        """End it as SIGKILL does: nothing is released, no peer is notified."""
        self.up.pop(replica.replica_id)
        await replica.local.crash()

    def events(self, kind: str) -> list[JournalEvent]:
        return [event for event in self.tables.read_events(0, 0, 1_000_000) if event.kind == kind]


class _Store(MemoryStore):
    """The twin, which does not answer while the fleet says so."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet.clock.monotonic_ms, tables=fleet.tables)
        self._fleet = fleet

    async def register(self, replica: Replica, ttl_ms: int) -> list[Replica]:
        self._check()
        return await super().register(replica, ttl_ms)

    async def renew(self, claims: Sequence[ShardClaim], replica_id: str, lease_ms: int) -> list[Renewal]:
        self._check()
        return await super().renew(claims, replica_id, lease_ms)

    async def owners(self) -> list[ShardOwner]:
        self._check()
        return await super().owners()

    def _check(self) -> None:
        if self._fleet.is_store_away:
            raise StoreUnavailable("the store was told to be away")


class _Wires:
    """`Peers` by a call."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._asked: set[asyncio.Task[None]] = set()

    def submit(self, peer: Replica, request: Request, done: Callable[[Answer | NoAnswer], None]) -> Cancel:
        async def ask() -> None:
            local = self._fleet.up.get(peer.replica_id)
            is_reached = local is not None and not self._fleet.is_cut
            done(await local.call(request) if local is not None and is_reached else NoAnswer("no way there"))

        task = asyncio.get_running_loop().create_task(ask())
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)
        return task.cancel

    async def watch(
        self, peer: Replica, namespace: str, group_id: str, after_revision: int | None
    ) -> AsyncIterator[JournalEvent]:
        async for event in self._fleet.up[peer.replica_id].watch(namespace, group_id, after_revision):
            yield event

    async def held(self, owners: Sequence[ShardOwner]) -> set[int]:
        reached = {} if self._fleet.is_cut else self._fleet.up
        asked = [(reached.get(owner.replica_id), owner) for owner in owners]
        return {
            shard_id
            for local, owner in asked
            if local is not None
            for shard_id in local.held(owner.replica_id, {owner.shard_id: owner.epoch})
        }

    async def notify_released(self, peers: Sequence[Replica]) -> None:
        for peer in peers:
            if peer.replica_id in self._fleet.up:
                self._fleet.up[peer.replica_id].nudge()

    async def notify_topics_changed(self, peers: Sequence[Replica], namespaces: Sequence[str]) -> None:
        for peer in peers:
            if peer.replica_id in self._fleet.up:
                self._fleet.up[peer.replica_id].on_topics_changed(namespaces)

    async def close(self) -> None:
        """Do nothing."""


@asynccontextmanager
async def owner_and_other(fleet: Fleet) -> AsyncIterator[tuple[RoutedCoordinator, RoutedCoordinator]]:
    """Two replicas, the first of which owns the shard."""
    async with AsyncExitStack() as stack:
        one, two = [await stack.enter_async_context(fleet.replica(name)) for name in ("r1", "r2")]
        while sorted(len(replica.owners()) for replica in (one, two)) != [0, 1]:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.01)
        await asyncio.sleep(fleet.lease_ms / 1000)
        yield (one, two) if one.owners() else (two, one)


class Worker:
    """One static member, which leads or follows in a group without rebalances once all have joined."""

    def __init__(self, instance: str) -> None:
        self.instance = instance
        self.member_id = ""
        self.generation_id = 0
        self.seen_s = 0.0
        """When it was last answered that it lives."""

    async def join(self, at: RoutedCoordinator) -> None:
        joined = (await at.call(self._a_join())).reply
        assert isinstance(joined, JoinReply)
        assert joined.error is ErrorCode.NONE, joined
        self.member_id, self.generation_id = joined.member_id, joined.generation_id
        shares = ((self.member_id, b"all"),)
        synced = await at.call(SyncGroup(*GROUP, self.member_id, self.generation_id, assignments=shares))
        assert synced.reply.error is ErrorCode.NONE
        self.seen_s = asyncio.get_running_loop().time()

    async def heartbeat(self, at: RoutedCoordinator, *, wait_ms: int = 0) -> ErrorCode:
        beat = Heartbeat(*GROUP, self.member_id, self.generation_id, wait_ms=wait_ms)
        error = (await at.call(beat)).reply.error
        if error is ErrorCode.NONE:
            self.seen_s = asyncio.get_running_loop().time()
        return error

    async def heartbeats(self, at: RoutedCoordinator, *, seconds: float) -> set[ErrorCode]:
        """Heartbeat every second; returns the answers."""
        answers = set()
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            answers.add(await self.heartbeat(at))
            await asyncio.sleep(1.0)
        return answers

    def _a_join(self) -> JoinGroup:
        return JoinGroup(
            *GROUP,
            protocol_type="worker",
            protocols=(Protocol("p", b"m"),),
            session_timeout_ms=int(SESSION_S * 1000),
            rebalance_timeout_ms=60_000,
            member_id=self.member_id,
            group_instance_id=self.instance,
        )


async def a_worker(at: RoutedCoordinator, instance: str = "w") -> Worker:
    """A member that the other replicas know of."""
    worker = Worker(instance)
    await worker.join(at)
    await asyncio.sleep(PUBLISHED_S)
    return worker


async def members(at: RoutedCoordinator) -> list[str]:
    described = (await at.call(DescribeGroup(*GROUP))).reply
    assert isinstance(described, DescribeReply)
    return [member.member_id for member in described.members]
