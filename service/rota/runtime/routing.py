"""The coordinator that clients reach: any replica answers for any shard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing

from rota.protocol.ids import shard_of
from rota.protocol.messages import (
    GetLeader,
    Heartbeat,
    HeartbeatMany,
    ListTopics,
    Request,
    VerifyFence,
)
from rota.replica.forwarding import Submitted
from rota.replica.ports import Answer, Cancel, JournalEvent, ShardOwner
from rota.runtime.coordinator import LocalCoordinator
from rota.runtime.following import Follower, Listener


class RoutedCoordinator:
    """`LocalCoordinator` for the shards of this replica, its peers for the others."""

    def __init__(self, local: LocalCoordinator) -> None:
        """`local` was made with peers."""
        assert local.forwarder is not None
        self.local = local
        self.shard_count = local.shard_count
        self.replica_id = local.replica_id
        self._forwarder = local.forwarder
        self._ending: set[asyncio.Task[None]] = set()

    # --- requests --------------------------------------------------------------------------------

    async def call(self, request: Request) -> Answer:
        """Answer a request wherever its shard lives; see `rota.replica.ports.Coordinator`."""
        if isinstance(request, ListTopics) and request.wait_ms:
            return await self.local.topic_news.list_when_changed(request, self._forwarder.call)
        return await self._forwarder.call(request)

    def try_heartbeat(self, request: Heartbeat | HeartbeatMany) -> Answer | None:
        """The answer, where this replica has it at hand."""
        return self.local.try_heartbeat(request)

    def try_read(self, request: VerifyFence | GetLeader) -> Answer | None:
        """The same for calls that change nothing."""
        return self.local.try_read(request)

    def submit(self, request: Submitted, done: Callable[[Answer], None]) -> Cancel | None:
        """As `call`, see `Forwarder.submit`; `done` gets the answer, unless the call is cancelled before."""
        return self._forwarder.submit(request, done)

    async def watch(
        self, namespace: str, group_id: str, after_revision: int | None = None
    ) -> AsyncIterator[JournalEvent]:
        """The group's journal from `after_revision` on, then live, wherever the shard lives."""
        shard_id = shard_of(namespace, group_id, self.shard_count)
        peer = None if self.local.hosts_shard(shard_id) else self.local.directory.peer_of(shard_id)
        if peer is None:
            stream = self.local.watch(namespace, group_id, after_revision)
        else:
            stream = self._forwarder.peers.watch(peer, namespace, group_id, after_revision)
        async with aclosing(stream) as events:  # type: ignore[type-var]
            async for event in events:
                yield event

    def subscribe(self, namespace: str, group_id: str, listener: Listener) -> Callable[[], None]:
        """Call `listener` with the group's journal lines from now on, until the returned function is called.

        See `Follower`: while the shard is here on the spot, otherwise as soon as its owner's event arrives.
        """
        if not self.local.forwarding.forwards:
            return self.local.subscribe(namespace, group_id, listener)
        follower = Follower(self, namespace, group_id, listener)

        def end() -> None:
            task = follower.end()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

        return end

    def subscribe_here(self, namespace: str, group_id: str, listener: Listener) -> Callable[[], None]:
        return self.local.subscribe(namespace, group_id, listener)

    def is_here(self, namespace: str, group_id: str) -> bool:
        return self.local.hosts_shard(shard_of(namespace, group_id, self.shard_count))

    async def until_moved(self, namespace: str, group_id: str) -> None:
        """Return once the group's shard is not here any more."""
        await self.local.until_moved(namespace, group_id)

    async def check_revision(self, namespace: str, group_id: str, after_revision: int) -> None:
        await self.local.check_revision(namespace, group_id, after_revision)

    async def events(self, shard_id: int, after_seq: int, limit: int) -> list[JournalEvent]:
        return await self.local.events(shard_id, after_seq, limit)

    def locate(self, namespace: str, group_id: str) -> ShardOwner:
        return self.local.locate(namespace, group_id)

    def owners(self) -> Sequence[ShardOwner]:
        return self.local.owners()

    def parked(self) -> int:
        return self.local.parked()

    def ready(self) -> tuple[bool, str]:
        return self.local.ready()

    async def wait_until_ready(self) -> None:
        await self.local.wait_until_ready()

    async def drain(self) -> None:
        await self.local.drain()

    async def stop(self) -> None:
        await asyncio.gather(*self._ending, return_exceptions=True)
        await self._forwarder.end()
        await self.local.stop()
