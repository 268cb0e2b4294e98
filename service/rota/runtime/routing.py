"""Any replica answers any request: what is another's is forwarded, once, to whoever owns the shard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Protocol

from rota.protocol.errors import ErrorCode
from rota.protocol.ids import shard_of
from rota.protocol.messages import (
    Heartbeat,
    HeartbeatMany,
    ListGroups,
    ListReply,
    ListTopics,
    ListTopicsReply,
    Reply,
    Request,
    refuse,
)
from rota.replica.ports import Answer, JournalEvent, Replica, ShardOwner
from rota.runtime.coordinator import DRAINING, NOT_ALL, LocalCoordinator
from rota.runtime.directory import LOOK_AGAIN_MS
from rota.runtime.following import Follower
from rota.runtime.pages import merge_groups, merge_topics
from rota.runtime.subscriptions import Listener

MOVED = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
"""Nothing was decided: the same request may be asked of the next owner."""
UNANSWERED = (*MOVED, ErrorCode.COORDINATOR_NOT_AVAILABLE)
"""No owner has answered."""
MOVE_S = 1.0
"""How long a request waits for its shard to arrive somewhere: a hand-over takes some tens of milliseconds."""


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
    """`LocalCoordinator` for the shards of this replica, its peers for the others.

    There are no loops: a peer answers from its own shards only. A request that meets a move is asked again of the
    new owner, once that answers; a call whose peer died may have been acted on, so its client is told to try again.
    """

    def __init__(self, local: LocalCoordinator, peers: Peers, *, forward: bool = True) -> None:
        self.local = local
        local.assigning.ask = self.call
        local.when_draining = self._end_waits
        local.when_topics_change = self._tell_of_topics
        self.shard_count = local.shard_count
        self.replica_id = local.replica_id
        self._peers = peers
        self._forward = forward
        self._ending: set[asyncio.Task[None]] = set()
        self._untold: set[str] = set()
        """Namespaces of which the peers have not been told yet that topics have changed."""
        self._telling: asyncio.Task[None] | None = None
        self._waiting: dict[asyncio.Timeout, None] = {}

    # --- requests --------------------------------------------------------------------------------

    async def call(self, request: Request) -> Answer:
        """Answer a request wherever its shard lives; see `rota.replica.ports.Coordinator`."""
        if isinstance(request, ListTopics) and request.wait_ms:
            return await self.local.topic_news.list_when_changed(request, self._list)
        if isinstance(request, ListGroups | ListTopics):
            return await self._list(request)
        asked_s = _now_s()
        answer = await self._ask_owner(request)
        if answer.reply.error not in UNANSWERED or self.local.draining:
            return answer
        if isinstance(request, Heartbeat | HeartbeatMany):
            return await self._keep_alive(request, answer, asked_s)
        return await self._ask_again(request, answer)

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
        if not self._forward:
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

    async def _ask_owner(self, request: Request) -> Answer:
        shard_id = self._shard_of(request)
        peer = self.local.directory.peer_of(shard_id)
        if not self._forward or peer is None or self.local.hosts_shard(shard_id):
            return await self.local.call(request)
        try:
            async with asyncio.timeout(None) as waiting:
                if getattr(request, "wait_ms", 0) != 0:
                    self._waiting[waiting] = None
                return await self._peers.call(peer, request)
        except PeerUnreachable as error:
            detail = f"the shard's owner {peer.replica_id} does not answer: {error}"
            return Answer(refuse(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, detail))
        except TimeoutError:
            return Answer(refuse(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, DRAINING))
        finally:
            self._waiting.pop(waiting, None)

    def _end_waits(self) -> None:
        """What is parked at a peer for our clients must not hold this process up; they wait again elsewhere."""
        for waiting in self._waiting:
            waiting.reschedule(_now_s())

    async def _ask_again(self, request: Request, answer: Answer) -> Answer:
        """Ask the next owner, where nothing was decided and there soon is one.

        Until the store tells of the next owner, it tells of the last one, who says the same again.
        """
        shard_id, give_up_s = self._shard_of(request), _now_s() + MOVE_S
        while answer.reply.error in MOVED and self._forward and await self._owner_appears(shard_id, give_up_s):
            answer = await self._ask_owner(request)
            if answer.reply.error in MOVED:
                await asyncio.sleep(LOOK_AGAIN_MS / 1000)
        return answer

    async def _keep_alive(self, request: Heartbeat | HeartbeatMany, answer: Answer, asked_s: float) -> Answer:
        """Members whose owner is not there stay alive, where the liveness store knows them."""
        if answer.reply.error is ErrorCode.NOT_COORDINATOR:
            # There is an owner, who knows more about the group than that its members live.
            answer = await self._ask_again(request, answer)
            if answer.reply.error not in UNANSWERED or answer.reply.error is ErrorCode.NOT_COORDINATOR:
                return answer
        recorded = await self.local.record_heartbeat(request)
        if recorded is None:
            return await self._ask_again(request, answer)
        if isinstance(request, Heartbeat) and request.wait_ms:
            # Who is answered at once asks again at once. Who has waited for a silent owner has waited enough.
            await asyncio.sleep(max(0.0, asked_s + min(request.wait_ms / 1000, MOVE_S) - _now_s()))
        return recorded

    async def _owner_appears(self, shard_id: int, give_up_s: float) -> bool:
        """Wait until somebody who is up holds the shard."""
        try:
            async with asyncio.timeout_at(give_up_s):
                await self.local.directory.until_held(shard_id)
        except TimeoutError:
            return False
        return True

    async def _list(self, request: ListGroups | ListTopics) -> Answer:
        """A page of what all shards hold; asked for again while some are on their way, or their owner is silent."""
        if isinstance(request, ListTopics):
            request = replace(request, version="", wait_ms=0)
        if not self._forward:
            return await self.local.call(request)
        give_up_s = _now_s() + MOVE_S
        answer = await self._list_everywhere(request)
        while answer.reply.error in UNANSWERED and _now_s() < give_up_s and not self.local.draining:
            await asyncio.sleep(LOOK_AGAIN_MS / 1000)
            answer = await self._list_everywhere(request)
        return answer

    async def _list_everywhere(self, request: ListGroups | ListTopics) -> Answer:
        """Every replica lists its own shards, as they are now.

        The list is complete only if each shard is in one part of it. One may be in none, where it was let go of and its
        next owner is not known here yet; or in two, where it has moved between two answers.
        """
        answers = [await self.local.call(request)]
        for peer in self.local.directory.peers:
            try:
                answers.append(await self._peers.call(peer, request))
            except PeerUnreachable as error:
                detail = f"replica {peer.replica_id} does not answer: {error}"
                return Answer(refuse(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, detail))
        replies = [answer.reply for answer in answers if answer.reply.error not in MOVED]
        failed = next((reply for reply in replies if reply.error is not ErrorCode.NONE), None)
        if failed is not None:
            return Answer(failed)
        if sorted(shard_id for answer in answers for shard_id in answer.shards) != list(range(self.shard_count)):
            return Answer(refuse(request, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, NOT_ALL))
        return Answer(_merged(request, replies))

    def _tell_of_topics(self, namespaces: set[str]) -> None:
        self._untold |= namespaces
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell_peers())

    async def _tell_peers(self) -> None:
        """One message at a time; what changes meanwhile goes into the next."""
        while self._untold and (peers := self.local.directory.peers):
            namespaces, self._untold = self._untold, set()
            await self._peers.tell_topics_changed(peers, sorted(namespaces))

    def _shard_of(self, request: Request) -> int:
        name = getattr(request, "group_id", "") or getattr(request, "topic", "")
        return shard_of(request.namespace, name, self.shard_count)


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _merged(request: ListGroups | ListTopics, replies: list[Reply]) -> Reply:
    if isinstance(request, ListGroups):
        return merge_groups([r for r in replies if isinstance(r, ListReply)], request.limit)
    return merge_topics([r for r in replies if isinstance(r, ListTopicsReply)], request.limit)
