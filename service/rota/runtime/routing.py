"""The shell of `rota.replica.forwarding`: asks this replica's shards and its peers, and waits where a call waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Protocol

from rota.protocol.ids import shard_of
from rota.protocol.messages import Heartbeat, HeartbeatMany, ListGroups, ListTopics, Request
from rota.replica import forwarding as step
from rota.replica.forwarding import DRAINING, NoAnswer, Step, Steps
from rota.replica.ports import Answer, JournalEvent, Replica, ShardOwner
from rota.runtime.coordinator import LocalCoordinator
from rota.runtime.following import Follower
from rota.runtime.subscriptions import Listener


class PeerUnreachable(Exception):
    """The peer did not answer. Whether it acted on the request is not known."""


class Peers(Protocol):
    """The other replicas, over one connection each."""

    async def call(self, peer: Replica, request: Request) -> Answer:
        """Ask a peer about a shard of its own; raises `PeerUnreachable`."""

    def watch(
        self, peer: Replica, namespace: str, group_id: str, after_revision: int | None
    ) -> AsyncIterator[JournalEvent]:
        """Follow a group at its owner; ends when the peer or the shard goes."""

    async def tell_released(self, peers: Sequence[Replica]) -> None:
        """Let these know that shards have become free. Best effort: leases run out anyway."""

    async def tell_topics_changed(self, peers: Sequence[Replica], namespaces: Sequence[str]) -> None:
        """Let these know that topics of namespaces have changed. Best effort: who needs to know looks now and then."""

    async def close(self) -> None: ...


class RoutedCoordinator:
    """`LocalCoordinator` for the shards of this replica, its peers for the others: the shell of `Forwarding`."""

    def __init__(self, local: LocalCoordinator, peers: Peers, *, forward: bool = True) -> None:
        self.local = local
        local.assigning.ask = self.call
        local.when_draining = self._drain
        local.when_topics_change = self._tell_of_topics
        self.shard_count = local.shard_count
        self.replica_id = local.replica_id
        self._forwarding = local.forwarding
        self._forwarding.forwards = forward
        self._peers = peers
        self._ending: set[asyncio.Task[None]] = set()
        self._untold: set[str] = set()
        """Namespaces of which the peers have not been told yet that topics have changed."""
        self._telling: asyncio.Task[None] | None = None
        self._waiting: dict[asyncio.Timeout, None] = {}

    # --- requests --------------------------------------------------------------------------------

    async def call(self, request: Request) -> Answer:
        """Answer a request wherever its shard lives; see `rota.replica.ports.Coordinator`."""
        if isinstance(request, ListTopics) and request.wait_ms:
            return await self.local.topic_news.list_when_changed(request, self._forward)
        return await self._forward(request)

    def try_heartbeat(self, request: Heartbeat | HeartbeatMany) -> Answer | None:
        """The answer, where this replica has it at hand."""
        return self.local.try_heartbeat(request)

    async def watch(
        self, namespace: str, group_id: str, after_revision: int | None = None
    ) -> AsyncIterator[JournalEvent]:
        """The group's journal from `after_revision` on, then live, wherever the shard lives."""
        shard_id = shard_of(namespace, group_id, self.shard_count)
        peer = None if self.local.hosts_shard(shard_id) else self.local.directory.peer_of(shard_id)
        if peer is None:
            stream = self.local.watch(namespace, group_id, after_revision)
        else:
            stream = self._peers.watch(peer, namespace, group_id, after_revision)
        async with aclosing(stream) as events:  # type: ignore[type-var]
            async for event in events:
                yield event

    def subscribe(self, namespace: str, group_id: str, listener: Listener) -> Callable[[], None]:
        """Call `listener` with each of the group's journal lines from now on, until the returned function is called.

        See `Follower`: while the shard is here on the spot, otherwise as soon as its owner has told us.
        """
        if not self._forwarding.forwards:
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
        await self.local.stop()
        if self._telling is not None:
            await self._telling

    # --- inside ------------------------------------------------------------------------------------

    async def _forward(self, request: Request) -> Answer:
        forwarding, asked_ms = self._forwarding, _now_ms()
        if isinstance(request, ListGroups | ListTopics):
            return await self._carry_out(forwarding.call(request, asked_ms))
        match forwarding.route(request):
            case Answer() as answer:
                return answer
            case step.AskHere():
                answer = await self.local.call(request)
            case step.AskPeer() as do:
                answer = forwarding.answer_of(do, await self._ask_peer(do))
        if forwarding.is_final(answer):
            return answer
        return await self._carry_out(forwarding.go_on(request, answer, asked_ms, _now_ms()))

    async def _carry_out(self, steps: Steps[Answer]) -> Answer:
        try:
            do = next(steps)
            while True:
                answer = await self._do(do)
                do = steps.send((answer, _now_ms()))
        except StopIteration as end:
            answered: Answer = end.value
            return answered

    async def _do(self, do: Step) -> Answer | NoAnswer | None:
        match do:
            case step.AskHere(request):
                return await self.local.call(request)
            case step.AskPeer():
                return await self._ask_peer(do)
            case step.ReadOwners(until_ms):
                await self.local.directory.read_for_waiting(until_ms)
            case step.AwaitArrival(until_ms):
                await self.local.directory.await_arrival(until_ms)
            case step.Pause(until_ms):
                await asyncio.sleep(max(0, until_ms - _now_ms()) / 1000)
            case step.RecordHeartbeat(request):
                return await self.local.record_heartbeat(request)
        return None

    async def _ask_peer(self, do: step.AskPeer) -> Answer | NoAnswer:
        try:
            if not do.parks:
                return await self._peers.call(do.peer, do.request)
            async with asyncio.timeout(None) as waiting:
                self._waiting[waiting] = None
                try:
                    return await self._peers.call(do.peer, do.request)
                finally:
                    del self._waiting[waiting]
        except PeerUnreachable as error:
            return NoAnswer(str(error))
        except TimeoutError:
            return NoAnswer(DRAINING)

    def _drain(self) -> None:
        """End calls that this replica's clients have parked at peers."""
        for waiting in self._waiting:
            waiting.reschedule(asyncio.get_running_loop().time())

    def _tell_of_topics(self, namespaces: set[str]) -> None:
        self._untold |= namespaces
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell_peers())

    async def _tell_peers(self) -> None:
        """One message at a time; what changes meanwhile goes into the next."""
        while self._untold and (peers := self.local.directory.peers):
            namespaces, self._untold = self._untold, set()
            await self._peers.tell_topics_changed(peers, sorted(namespaces))


def _now_ms() -> int:
    return round(asyncio.get_running_loop().time() * 1000)
