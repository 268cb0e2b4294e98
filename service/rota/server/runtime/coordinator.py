"""The coordinators of one process: `LocalCoordinator` answers for its own shards, `RoutedCoordinator` for all.

Each finds the shard of a request, and waits if the protocol waits.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing

from msgspec.structs import replace

from rota.core.group.records import TopicChanged
from rota.core.group.state import Group
from rota.core.replica.forwarding import Forwarding, Submitted, not_all, page_of_shards, shard_of_request
from rota.core.replica.leases import Leases
from rota.core.replica.ports import Answer, Cancel, JournalEvent, Liveness, Replica, ShardOwner, ShardStore
from rota.protocol.calls import refuse
from rota.protocol.defaults import LEASE_MS
from rota.protocol.errors import ErrorCode
from rota.protocol.ids import shard_of
from rota.protocol.limits import Limits
from rota.protocol.messages import (
    DeleteGroup,
    DeleteOffsets,
    DeleteTopic,
    FenceReply,
    FetchOffsets,
    ForgetTopic,
    GetLeader,
    GetTopic,
    Heartbeat,
    HeartbeatMany,
    JoinGroup,
    ListGroups,
    ListTopics,
    PutTopic,
    Reply,
    Request,
    TopicReply,
    VerifyFence,
)
from rota.server.runtime.assigning import ServerAssigner, TopicNotifications
from rota.server.runtime.clock import Clock, SystemClock
from rota.server.runtime.following import Follower, ask_until_changed, watch_group
from rota.server.runtime.forwarding import Directory, Forwarder, Peers
from rota.server.runtime.loop import ALL_TOPICS, Call, Listener, ServedShard, ShardLoop
from rota.server.runtime.ownership import Ownership
from rota.server.runtime.sessions import SharedSessions
from rota.server.runtime.telemetry import Telemetry

Sign = Callable[[VerifyFence, FenceReply], FenceReply]
"""Adds a signed token to the answer that a fence holds."""


class LocalCoordinator:
    """The shards of a store that this process owns: all of them if it is alone.

    Use as an async context manager: entering starts the tasks, leaving stops them and releases the shards.
    """

    def __init__(
        self,
        store: ShardStore,
        *,
        shard_count: int = 64,
        limits: Limits | None = None,
        clock: Clock | None = None,
        telemetry: Telemetry | None = None,
        replica_id: str | None = None,
        address: str = "",
        lease_ms: int = LEASE_MS,
        steal: bool = False,
        peers: Peers | None = None,
        forward: bool = True,
        liveness: Liveness | None = None,
        sign: Sign | None = None,
    ) -> None:
        """`peers`: the other replicas, if the store may have some. `forward`: calls are forwarded to them."""
        self.shard_count = shard_count
        self.limits = limits or Limits()
        self.replica_id = replica_id or f"replica-{uuid.uuid4()}"
        self._sign = sign
        self._store = store
        self._clock = clock or SystemClock()
        self._telemetry = telemetry or Telemetry()
        self._tasks: list[asyncio.Task[None]] = []
        # Without a liveness store, the memory of the shards' owners is all that is known of sessions.
        self._sessions = SharedSessions(liveness, self._clock, self._telemetry) if liveness else None
        self.directory = Directory(store, self._clock, self.replica_id, shard_count)
        """The other replicas that are up, and the owners of shards."""
        leases = Leases(Replica(self.replica_id, address), self.directory, lease_ms=lease_ms, steal=steal)
        self.loop = ShardLoop(store, self._clock, self._telemetry, leases, self._sessions)
        """The shards in memory here."""
        self.loop.subscriptions.add(*ALL_TOPICS, self._on_topic_lines)
        self.forwarding = Forwarding(self.directory, self.loop.shards, forwards=forward and peers is not None)
        """Which calls are answered here."""
        self.forwarder: Forwarder | None = None
        """Answers clients' calls wherever their shards are, if there may be other replicas."""
        self._notifications: TopicNotifications | None = None
        if peers is not None:
            self.forwarder = Forwarder(self.forwarding, self.directory, peers, self, self._telemetry)
            self._notifications = TopicNotifications(peers.notify_topics_changed, self.directory)
        ask_all = self.forwarder.call if self.forwarder else self.call
        self._ask_all_replicas = ask_all
        self._assigner = ServerAssigner(ask_all, self.loop)
        self._ownership = Ownership(self.loop, self.directory, peers, self.limits)
        self.reached_at, self.nudge, self.owners = (
            self._ownership.reached_at,
            self._ownership.nudge,
            self._ownership.owned,
        )

    async def __aenter__(self) -> LocalCoordinator:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start serving. Shards answer as they are loaded; `ready()` says when all are."""
        loop = self.loop
        runners = [self._ownership.run(), loop.run(), loop.run_timers(), loop.run_expiries(), loop.run_upkeep()]
        runners.append(self._assigner.run())
        if self._sessions:
            runners.append(self._sessions.run(loop.leases.owned))
        self._tasks = [asyncio.create_task(runner) for runner in runners]

    async def wait_until_ready(self) -> None:
        """Return once every shard is loaded and says so in the journal."""
        await self._ownership.wait_until_complete()
        await self.loop.flush()

    async def watch_over(self) -> None:
        """Wait for as long as the runtime's tasks live; raise what ended one. A process without them must end."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if not task.cancelled():
                task.result()

    async def drain(self) -> None:
        """Answer every parked call with a retriable error and take no new one; what is decided becomes durable.

        Watches end, and so do waits for a leader, with the one that there is.
        """
        await self._ownership.end_rounds()
        self.forwarding.is_draining = True
        if self.forwarder is not None:
            self.forwarder.drain()
        await self._ownership.leave()

    async def stop(self) -> None:
        """Drain, end the tasks."""
        if all(task.done() for task in self._tasks):
            return
        if not self.forwarding.is_draining:
            await self.drain()
        renewing, committing, *others = self._tasks
        await _end([renewing, *others])
        await self._ownership.flush()
        await _end([committing])
        if self._notifications is not None:
            await self._notifications.flush()

    async def crash(self) -> None:
        """End the tasks and release nothing, as a killed process would. For tests of those that remain."""
        await _end(self._tasks)

    def ready(self) -> tuple[bool, str]:
        """Can this process serve? Never "is it the leader of something"."""
        if self.forwarding.is_draining:
            return False, "draining"
        for task in self._tasks:
            if task.done():
                return False, f"a task of the runtime ended: {task.get_name()}"
        now, due = self._clock.now(), len(self.loop.leases.due)
        usable = sum(owned.may_answer(now) for owned in self.loop.leases.owned.values())
        is_ready = self.loop.leases.is_placed and due <= usable
        troubles = [each for each in (self._ownership.setback, self._ownership.store_trouble) if each]
        counts = f"{usable} shards are served, {due} are due to this replica"
        return is_ready and not self._ownership.setback, "; ".join([counts, *troubles])

    def store_failing_ms(self) -> int:
        """For how long each write to the store has failed; 0 if the last one has not."""
        since_ms = self._ownership.failing_since_ms
        return 0 if since_ms is None else self._clock.monotonic_ms() - since_ms

    # --- requests --------------------------------------------------------------------------------

    async def call(self, request: Request) -> Answer:
        """Answer a request; never raises for anything that the protocol has a code for."""
        match request:
            case JoinGroup():
                return await self._submit(self._with_new_member_id(request))
            case GetLeader() | GetTopic() | ListTopics() if request.wait_ms:
                shard = self.loop.shards.get(shard_of_request(request, self.shard_count))
                return await ask_until_changed(request, self._submit, shard, self._clock)
            case VerifyFence(sign=True):
                return await self._verify_and_sign(request)
            case PutTopic() | DeleteTopic():
                return await self._change_topic(request)
            case ListGroups() | ForgetTopic():
                return await self._list(request)
            case _:
                return await self._submit(request)

    def try_heartbeat(self, request: Heartbeat | HeartbeatMany) -> Answer | None:
        """The answer, if it can be given without waiting for anything."""
        if self.forwarding.is_draining:
            return None
        return self.loop.try_heartbeat(shard_of(request.namespace, request.group_id, self.shard_count), request)

    def try_read(self, request: VerifyFence | GetLeader) -> Answer | None:
        """The answer to a call that changes nothing, if it can be given without waiting for anything."""
        waits = request.sign if isinstance(request, VerifyFence) else request.wait_ms
        if waits or self.forwarding.is_draining or self._needs_owner(request):
            return None
        return self.loop.try_read(shard_of(request.namespace, request.group_id, self.shard_count), request)

    def submit(self, request: Submitted, done: Callable[[Answer], None]) -> Cancel | None:
        """Make a call without a task; `done` gets the answer, unless the call is cancelled before."""
        call = Call(done)
        self.submit_to(shard_of_request(request, self.shard_count), request, call)
        return None if call.loop is None else call.cancel

    def submit_to(self, shard_id: int, request: Submitted, call: Call) -> None:
        """Submit a request of a known shard; `call` gets the answer."""
        if isinstance(request, JoinGroup) and not request.member_id:
            request = self._with_new_member_id(request)
        refusal = self.forwarding.refusal(request, shard_id)
        answer = refusal or self.loop.submit(self.loop.shards[shard_id].owned, request, call)
        if answer is not None:
            call.answered(answer)

    async def record_heartbeat(self, request: Heartbeat | HeartbeatMany) -> Answer | None:
        """Answer for an absent owner: record the heartbeats for the next one. None without a known member."""
        if self._sessions is None:
            return None
        return await self._sessions.record(shard_of_request(request, self.shard_count), request)

    async def watch(
        self, namespace: str, group_id: str, after_revision: int | None = None
    ) -> AsyncIterator[JournalEvent]:
        """The group's journal from `after_revision` on, then live. Ends when the shard moves: resume by revision."""
        shard = self._shard(namespace, group_id)
        if shard is not None and not self.forwarding.is_draining:
            async for event in watch_group(shard, self._store, namespace, group_id, after_revision):
                yield event

    def subscribe(self, namespace: str, group_id: str, listener: Listener) -> Callable[[], None]:
        """Call `listener` with the group's journal lines from now on, until the returned function is called.

        See `loop.Subscriptions`: cheaper than `watch`, and only about what this replica decides.
        """
        return self.loop.subscriptions.add(namespace, group_id, listener)

    async def check_revision(self, namespace: str, group_id: str, after_revision: int) -> None:
        """Raise `NotInJournal` where a watch from there on would miss lines. The shard may be at another replica."""
        await self._store.read_events(shard_of(namespace, group_id, self.shard_count), after_revision, 0)

    async def events(self, shard_id: int, after_seq: int, limit: int) -> list[JournalEvent]:
        """Journal lines of a shard."""
        return await self._store.read_events(shard_id, after_seq, limit)

    def locate(self, namespace: str, group_id: str) -> ShardOwner:
        """See `Ownership.owner_of`."""
        return self._ownership.owner_of(shard_of(namespace, group_id, self.shard_count))

    @property
    def draining(self) -> bool:
        """It takes no new calls."""
        return self.forwarding.is_draining

    def is_here(self, namespace: str, group_id: str) -> bool:
        """Whether the group's shard is in memory here."""
        return self._shard(namespace, group_id) is not None

    async def until_moved(self, namespace: str, group_id: str) -> None:
        """Return once the group's shard is not in memory here any more."""
        shard = self._shard(namespace, group_id)
        if shard is not None:
            await shard.gone.wait()

    def held(self, replica_id: str, epochs: Mapping[int, int]) -> list[int]:
        """The shards that this replica holds in these epochs, if that is its id, with leases that are not over."""
        here = self.loop.leases.owned if replica_id == self.replica_id else {}
        now, asked = self._clock.now(), [here[shard_id] for shard_id in epochs if shard_id in here]
        return [o.shard_id for o in asked if o.may_answer(now) and o.epoch == epochs[o.shard_id]]

    def on_topics_changed(self, namespaces: Iterable[str]) -> None:
        """Topics of these namespaces have changed, here or at a peer."""
        self._assigner.topics_changed(namespaces)

    def groups(self) -> Iterator[Group]:
        """Every group in memory here, for metrics."""
        for owned in self.loop.leases.owned.values():
            yield from owned.shard.groups.values()

    def shards_due(self) -> int:
        """How many shards this replica should hold."""
        return len(self.loop.leases.due)

    def parked(self) -> int:
        """Calls that wait for something."""
        return sum(owned.waiting for owned in self.loop.leases.owned.values())

    # --- inside ------------------------------------------------------------------------------------

    def _on_topic_lines(self, lines: Sequence[JournalEvent]) -> None:
        changed = {line.namespace for line in lines if line.kind == TopicChanged.kind}
        if changed:
            self.on_topics_changed(changed)
            if self._notifications is not None:
                self._notifications.send(changed)

    async def _submit(self, request: Request) -> Answer:
        shard_id = shard_of_request(request, self.shard_count)
        refusal = self.forwarding.refusal(request, shard_id)
        if refusal is not None:
            return refusal
        owned = self.loop.shards[shard_id].owned
        if self._needs_side_commits(request) and not await self.loop.take_in(owned):
            return Answer(refuse(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, "the store does not answer"))
        if self._needs_owner(request) and not await self._ownership.is_owner(owned):
            why = "the store does not confirm the owner"
            return Answer(refuse(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, why))
        return await self.loop.ask(owned, request)

    def _needs_side_commits(self, request: Request) -> bool:
        """Whether the shard has to take side commits in before it decides the request.

        Users' own transactions commit offsets past the shard's memory (ADR 15). The owner takes them in now and then,
        and before it would show or delete progress: it would otherwise show progress that is out of date, or delete
        progress without its line in the journal.
        """
        return isinstance(request, FetchOffsets | DeleteOffsets | DeleteGroup) and self._store.has_side_door

    def _needs_owner(self, request: Request) -> bool:
        """Whether the store has to confirm this owner before the shard decides the request.

        A lease is as good as the clocks that judge it. If the store's clock was set, another replica may have taken a
        shard while this one, by its own clock, still owns it. It writes nothing then, as each append carries the
        shard's epoch. A fence check writes nothing, and users act on it: so the store is asked for the epoch first.
        That is a read for all checks that wait at the same time. Heartbeats rely on the lease: they are many, and a
        holder that gets one answer too many is rejected by the fence.
        """
        return isinstance(request, VerifyFence) and not self.loop.leases.steal

    def _shard(self, namespace: str, name: str) -> ServedShard | None:
        return self.loop.shards.get(shard_of(namespace, name, self.shard_count))

    def _with_new_member_id(self, request: JoinGroup) -> JoinGroup:
        """Draw the id that a newcomer may get (protocol.md §1); the core draws nothing."""
        if request.member_id or request.new_member_id:
            return request
        prefix = request.group_instance_id or request.client_id
        member_id = f"{prefix}-{uuid.uuid4()}" if prefix else str(uuid.uuid4())
        return replace(request, new_member_id=member_id)

    async def _verify_and_sign(self, request: VerifyFence) -> Answer:
        """A member gets a token only after a check that it is in the generation."""
        if self._sign is None or not request.member_id:
            why = "sign needs a member_id" if self._sign else "this server has no keys to sign with"
            return Answer(refuse(request, ErrorCode.INVALID_REQUEST, why))
        answer = await self._submit(request)
        if isinstance(answer.reply, FenceReply) and _ok(answer.reply):
            return replace(answer, reply=self._sign(request, answer.reply))
        return answer

    async def _change_topic(self, request: PutTopic | DeleteTopic) -> Answer:
        """A topic that is deleted, or registered again, has no progress of an earlier one of its name (ADR 107).

        Its own shard forgets the earlier one first, so that no later attempt takes the same id: a `ForgetTopic` that a
        shard receives late must not delete the progress of a later topic.
        """
        answer = await self._submit(request)
        reply = answer.reply
        if not isinstance(reply, TopicReply) or not reply.forget_id:
            return answer
        forget = ForgetTopic(request.namespace, request.topic, reply.forget_id)
        forgotten = await self._submit(forget)
        if _ok(forgotten.reply):
            forgotten = await self._ask_all_replicas(forget)
        if not _ok(forgotten.reply):
            why = f"groups may still have progress in the deleted topic {request.topic}: {forgotten.reply.detail}"
            return Answer(refuse(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, why))
        if isinstance(request, PutTopic):
            return await self._submit(replace(request, topic_id=reply.forget_id))
        assert isinstance(forgotten.reply, TopicReply)
        return replace(answer, reply=replace(reply, groups=reply.groups + forgotten.reply.groups))

    async def _list(self, request: ListGroups | ForgetTopic) -> Answer:
        parts = {of: reply for of, reply in await self._ask_all(request) if _ok(reply)}
        return page_of_shards(request, parts) if self.loop.leases.is_all(parts) else not_all(request)

    async def _ask_all(self, request: Request) -> list[tuple[int, Reply]]:
        """Every shard's part of a listing, each as durable as any other answer."""
        asked = list(self.loop.leases.owned.values())
        answers = await asyncio.gather(*(self.loop.ask(owned, request) for owned in asked))
        return [(owned.shard_id, answer.reply) for owned, answer in zip(asked, answers, strict=True)]


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
        self.call, self.submit = local.forwarder.call, local.forwarder.submit
        # The answers that are this replica's alone.
        self.try_heartbeat, self.try_read = local.try_heartbeat, local.try_read
        self.check_revision, self.events = local.check_revision, local.events
        self.locate, self.owners, self.parked = local.locate, local.owners, local.parked
        self.ready, self.wait_until_ready, self.drain = local.ready, local.wait_until_ready, local.drain

    async def watch(
        self, namespace: str, group_id: str, after_revision: int | None = None
    ) -> AsyncIterator[JournalEvent]:
        """The group's journal from `after_revision` on, then live, wherever the shard lives."""
        shard_id = shard_of(namespace, group_id, self.shard_count)
        peer = self.local.directory.peer_of(shard_id)
        if peer is None or self.local.is_here(namespace, group_id):
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
        follower = Follower(self.local, self.watch, namespace, group_id, listener)

        def end() -> None:
            task = follower.end()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

        return end

    async def stop(self) -> None:
        await asyncio.gather(*self._ending, return_exceptions=True)
        await self._forwarder.end()
        await self.local.stop()


def _ok(reply: Reply) -> bool:
    return reply.error is ErrorCode.NONE


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result
