"""The owners of shards, the other replicas, and calls to these, by the rules of `core/replica/forwarding.py`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Container, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol

from rota.core.replica.forwarding import (
    DRAINING,
    MOVE_MS,
    MOVED,
    POLL_MS,
    UNANSWERED,
    Forwarding,
    Listed,
    NoAnswer,
    Submitted,
    no_answer,
    page_of_all,
)
from rota.core.replica.known_owners import KnownOwners
from rota.core.replica.ports import Answer, Cancel, JournalEvent, Replica, ShardOwner, ShardStore, StoreUnavailable
from rota.protocol.calls import refuse
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import Heartbeat, HeartbeatMany, Request, parks_for_ms
from rota.server.runtime.clock import Clock
from rota.server.runtime.loop import Call
from rota.server.runtime.telemetry import Telemetry

if TYPE_CHECKING:
    from rota.server.runtime.coordinator import LocalCoordinator

UNREACHABLE = "UNREACHABLE"
"""What a call counts as that its peer did not answer."""

logger = logging.getLogger(__name__)


class Peers(Protocol):
    """The other replicas, over one connection each."""

    def submit(self, peer: Replica, request: Request, done: Callable[[Answer | NoAnswer], None]) -> Cancel:
        """Ask a peer about a shard of its own; `done` gets the outcome, once, and after this has returned.

        The result cancels the request at the peer: then there is no outcome.
        """

    def watch(
        self, peer: Replica, namespace: str, group_id: str, after_revision: int | None
    ) -> AsyncIterator[JournalEvent]:
        """Follow a group at its owner; ends when the peer or the shard goes."""

    async def held(self, owners: Sequence[ShardOwner]) -> Collection[int]:
        """The shards that these say they hold, see `steps.AskOwners`; all are asked at once."""

    async def notify_released(self, peers: Sequence[Replica]) -> None:
        """Let these know that shards have become free. Best effort: leases run out anyway."""

    async def notify_topics_changed(self, peers: Sequence[Replica], namespaces: Sequence[str]) -> None:
        """Let these know that topics of namespaces have changed. Best effort: each lists topics now and then anyway."""

    async def close(self) -> None: ...


class Directory(KnownOwners):
    """The known owners, and the way to read them again."""

    def __init__(self, store: ShardStore, clock: Clock, replica_id: str, shard_count: int) -> None:
        super().__init__(replica_id, shard_count)
        self._store = store
        self.clock = clock
        self._arrival = asyncio.Event()
        self._turn = asyncio.Lock()
        self._looks = 0
        self.read_ms = -POLL_MS

    async def look(self, *, unless_within_ms: int = 0) -> None:
        """Look at the store again. All that ask while a look is under way share the next one."""
        asked_at = self._looks
        async with self._turn:
            now_ms = self.clock.monotonic_ms()
            if self._looks == asked_at and now_ms - self.read_ms >= unless_within_ms:
                self._looks, self.read_ms = self._looks + 1, now_ms
                asked = self.memory.ask()
                owners = await self._store.owners()
                self.update(owners, now_ms, self.clock.monotonic_ms(), asked)

    def note_arrival(self) -> None:
        """A shard is in memory here now."""
        self._arrival.set()
        self._arrival = asyncio.Event()

    async def await_owner(self, shard_id: int, here: Container[int], until_ms: int) -> bool:
        """Whether, by `until_ms`, the shard is in memory here or the store names a peer that is up and holds it.

        However many calls wait, the store is read once in `POLL_MS`.
        """
        while self._left_s(until_ms) > 0:
            with suppress(StoreUnavailable, TimeoutError):
                async with asyncio.timeout(self._left_s(until_ms)):
                    await self.look(unless_within_ms=POLL_MS)
            if self._left_s(until_ms) > 0 and (shard_id in here or self.peer_of(shard_id) is not None):
                return True
            with suppress(TimeoutError):
                async with asyncio.timeout(min(POLL_MS / 1000, self._left_s(until_ms))):
                    await self._arrival.wait()
        return False

    def _left_s(self, until_ms: int) -> float:
        return max(0, until_ms - self.clock.monotonic_ms()) / 1000


class Forwarder:
    """Answers a client's call wherever its shard is."""

    def __init__(
        self, forwarding: Forwarding, directory: Directory, peers: Peers, here: LocalCoordinator, telemetry: Telemetry
    ) -> None:
        self.peers = peers
        self._forwarding = forwarding
        self._directory = directory
        self._here = here
        self._telemetry = telemetry
        self._parked: dict[object, tuple[Cancel, Callable[[NoAnswer], None]]] = {}
        """Calls that may wait at peers for long: how each is cancelled there, and the receiver of its outcome."""
        self._finishing: set[asyncio.Future[None]] = set()

    async def call(self, request: Request) -> Answer:
        """The answer to a client's request, wherever its shard is."""
        if isinstance(request, Listed):
            return await self._list(request)
        asked_ms = self._now_ms()
        answer = await self._ask_owner(request)
        return answer if self.is_final(answer) else await self._go_on(request, answer, asked_ms)

    def submit(self, request: Submitted, done: Callable[[Answer], None]) -> Cancel | None:
        """Make a call, without a task if the first answer is final.

        `done` gets the answer, unless the call parks and is cancelled before.
        """
        shard_id = self._forwarding.shard_of(request)
        peer = self._forwarding.owner_elsewhere(shard_id, request)
        # Of a heartbeat alone: to look at the clock is a system call.
        call = _Submitted(self, request, done, self._now_ms() if isinstance(request, Heartbeat) else 0)
        if peer is None:
            self._here.submit_to(shard_id, request, call)
        elif (refused := self._forwarding.refusal_to_park(request)) is not None:
            done(refused)
        else:
            call.ask(peer)
        return None if call.is_answered or not parks_for_ms(request) else call.cancel

    def is_final(self, answer: Answer) -> bool:
        """See `Forwarding.is_final`."""
        return answer.reply.error is ErrorCode.NONE or self._forwarding.is_final(answer)

    def finish(
        self, request: Request, answer: Answer, asked_ms: int, done: Callable[[Answer], None]
    ) -> asyncio.Task[None]:
        """The rest of a call in a task. `asked_ms` counts for heartbeats that wait."""
        task = asyncio.get_running_loop().create_task(self._finish(request, answer, asked_ms, done))
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)
        return task

    async def _finish(self, request: Request, answer: Answer, asked_ms: int, done: Callable[[Answer], None]) -> None:
        try:
            answer = await self._go_on(request, answer, asked_ms)
        except Exception as error:
            # A bug of ours. The outcome of the request is unknown, and this code says so to a client.
            logger.error("a forwarded request failed", exc_info=error)
            answer = Answer(refuse(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, "an internal error; see the log"))
        done(answer)

    async def end(self) -> None:
        """End the calls that go on in tasks, AFTER the servers have stopped: no client waits for the answers."""
        for task in self._finishing:
            task.cancel()
        await asyncio.gather(*self._finishing, return_exceptions=True)

    def drain(self) -> None:
        """End calls that this replica's clients have parked at peers."""
        parked, self._parked = self._parked, {}
        for cancel, done in parked.values():
            cancel()
            done(NoAnswer(DRAINING))

    # --- asking ------------------------------------------------------------------------------------

    async def _ask_owner(self, request: Request) -> Answer:
        peer = self._forwarding.owner_elsewhere(self._forwarding.shard_of(request), request)
        if peer is None:
            return await self._here.call(request)
        return self._forwarding.refusal_to_park(request) or await self._ask_peer(peer, request)

    async def _go_on(self, request: Request, answer: Answer, asked_ms: int) -> Answer:
        """The rest of a call after a first answer that is not final."""
        if isinstance(request, Heartbeat | HeartbeatMany):
            return await self._keep_alive(request, answer, asked_ms)
        return await self._ask_again(request, answer)

    async def _ask_again(self, request: Request, answer: Answer) -> Answer:
        """Ask the next owner, for as long as no replica has decided the call.

        The store names the last owner until the next one has claimed the shard, and the last owner refuses again.
        """
        rules, until_ms = self._forwarding, self._now_ms() + MOVE_MS
        while answer.reply.error in MOVED and rules.is_forwarded(request):
            if not await self._directory.await_owner(rules.shard_of(request), rules.here, until_ms):
                break
            answer = await self._ask_owner(request)
            if answer.reply.error in MOVED:
                await asyncio.sleep(POLL_MS / 1000)
        return answer

    async def _keep_alive(self, request: Heartbeat | HeartbeatMany, answer: Answer, asked_ms: int) -> Answer:
        """Members of an owner that does not answer stay alive, if the liveness store knows them."""
        if answer.reply.error is ErrorCode.NOT_COORDINATOR:
            # There is an owner, and its answer says more about the group than that the members live.
            answer = await self._ask_again(request, answer)
            if answer.reply.error not in UNANSWERED or answer.reply.error is ErrorCode.NOT_COORDINATOR:
                return answer
        recorded = await self._here.record_heartbeat(request)
        if recorded is None:
            return await self._ask_again(request, answer)
        if isinstance(request, Heartbeat) and request.wait_ms:
            # An immediate answer would make the member send the next heartbeat at once. The time that a silent owner
            # took counts.
            await asyncio.sleep(max(0, asked_ms + min(request.wait_ms, MOVE_MS) - self._now_ms()) / 1000)
        return recorded

    async def _list(self, request: Listed) -> Answer:
        """A page of all shards, retried while some have no owner, or an owner does not answer: it decides nothing.

        Without `forwards`, too: no single owner has the whole list.
        """
        until_ms = self._now_ms() + MOVE_MS
        answer = await self._list_everywhere(request)
        while answer.reply.error in UNANSWERED and self._now_ms() < until_ms and not self._forwarding.is_draining:
            await asyncio.sleep(POLL_MS / 1000)
            answer = await self._list_everywhere(request)
        return answer

    async def _list_everywhere(self, request: Listed) -> Answer:
        """Each replica lists its own shards, one after the other: see `page_of_all`."""
        parts = [await self._here.call(request)]
        for peer in self._directory.peers:
            parts.append(await self._ask_peer(peer, request))
            if parts[-1].reply.error is ErrorCode.COORDINATOR_NOT_AVAILABLE:
                return parts[-1]
        loaded = [answer for answer in parts if answer.reply.error not in MOVED]
        return page_of_all(request, loaded, self._directory.shard_count)

    async def _ask_peer(self, peer: Replica, request: Request) -> Answer:
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        cancel = self.ask(peer, request, partial(_settle, answered))
        try:
            return await answered
        finally:
            cancel()

    def ask(self, peer: Replica, request: Request, done: Callable[[Answer], None]) -> Cancel:
        """Ask a peer; `done` gets the answer, unless the result is called before.

        If the call may wait there for long, a drain ends it: its client waits again elsewhere.
        """

        def settle(outcome: Answer | NoAnswer) -> None:
            done(outcome if isinstance(outcome, Answer) else no_answer(peer, request, outcome.why))

        if not parks_for_ms(request):
            return self.peers.submit(peer, request, partial(self._count, settle))
        key = object()

        def settle_parked(outcome: Answer | NoAnswer) -> None:
            if self._parked.pop(key, None) is not None:
                self._count(settle, outcome)

        def cancel() -> None:
            if self._parked.pop(key, None) is not None:
                there()

        there = self.peers.submit(peer, request, settle_parked)
        self._parked[key] = there, settle
        return cancel

    def _now_ms(self) -> int:
        return self._directory.clock.monotonic_ms()

    def _count(self, done: Callable[[Answer | NoAnswer], None], outcome: Answer | NoAnswer) -> None:
        self._telemetry.on_forwarded(UNREACHABLE if isinstance(outcome, NoAnswer) else outcome.reply.error)
        done(outcome)


def _settle(answered: asyncio.Future[Answer], answer: Answer) -> None:
    if not answered.done():  # Its caller may have been cancelled in this turn.
        answered.set_result(answer)


class _Submitted(Call):
    """A call without a task. Another owner is asked if the first answer is not final."""

    __slots__ = ("_asked_ms", "_forwarder", "_is_cancelled", "_request", "_rest", "_there")

    def __init__(self, forwarder: Forwarder, request: Submitted, done: Callable[[Answer], None], asked_ms: int) -> None:
        super().__init__(done)
        self._forwarder = forwarder
        self._request = request
        self._asked_ms = asked_ms
        self._there: Cancel | None = None
        """Cancels the call at the peer that was asked first."""
        self._rest: asyncio.Task[None] | None = None
        self._is_cancelled = False

    @property
    def is_answered(self) -> bool:
        """Whether the answer was there at once."""
        return self.loop is None and self._there is None and self._rest is None

    def ask(self, peer: Replica) -> None:
        """Ask a peer first."""
        self._there = self._forwarder.ask(peer, self._request, self.answered)

    def answered(self, answer: Answer) -> None:
        """The answer of the first owner is there."""
        if self._is_cancelled:
            return  # It was under way. Nothing could cancel the rest.
        if self._forwarder.is_final(answer):
            self.done(answer)
        else:
            self._rest = self._forwarder.finish(self._request, answer, self._asked_ms, self.done)

    def cancel(self) -> None:
        """Its client is gone."""
        self._is_cancelled = True
        super().cancel()
        if self._there is not None:
            self._there()
        if self._rest is not None:
            self._rest.cancel()
