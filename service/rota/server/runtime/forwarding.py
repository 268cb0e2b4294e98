"""The shell of `rota.core.replica.forwarding`: the owners of shards, the other replicas, and calls that go to these.

The owners are read from the store, once for all calls that wait while a shard has none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol

from rota.core.replica import forwarding as step
from rota.core.replica.forwarding import (
    DRAINING,
    POLL_MS,
    Forwarding,
    NoAnswer,
    Step,
    Steps,
    Submitted,
)
from rota.core.replica.known_owners import KnownOwners
from rota.core.replica.ports import Answer, Cancel, JournalEvent, Replica, ShardOwner, ShardStore, StoreUnavailable
from rota.protocol.calls import refuse
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import Heartbeat, Request, parks_for_ms
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
        self._clock = clock
        self._arrival = asyncio.Event()
        self._turn = asyncio.Lock()
        self._looks = 0
        self.read_ms = -POLL_MS

    async def look(self, *, unless_within_ms: int = 0) -> None:
        """Look at the store again. All that ask while a look is under way share the next one."""
        asked_at = self._looks
        async with self._turn:
            now_ms = self._clock.monotonic_ms()
            if self._looks == asked_at and now_ms - self.read_ms >= unless_within_ms:
                self._looks, self.read_ms = self._looks + 1, now_ms
                asked = self.memory.ask()
                owners = await self._store.owners()
                self.update(owners, now_ms, self._clock.monotonic_ms(), asked)

    def note_arrival(self) -> None:
        """A shard is in memory here now."""
        self._arrival.set()
        self._arrival = asyncio.Event()

    async def read_for_waiting(self, until_ms: int) -> None:
        """Read the owners as a call asks for that waits for one: see `forwarding.ReadOwners`."""
        with suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(self._left_s(until_ms)):
                await self.look(unless_within_ms=POLL_MS)

    async def await_arrival(self, until_ms: int) -> None:
        """Return once a shard is loaded here, or at `until_ms`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._left_s(until_ms)):
                await self._arrival.wait()

    def _left_s(self, until_ms: int) -> float:
        return max(0, until_ms - self._clock.monotonic_ms()) / 1000


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
        """See `Forwarding.call`."""
        return await self._carry_out(self._forwarding.call(request, _now_ms()))

    def submit(self, request: Submitted, done: Callable[[Answer], None]) -> Cancel | None:
        """As `call`, without a task where the first answer is final.

        `done` gets the answer, unless the call parks and is cancelled before.
        """
        shard_id = self._forwarding.shard_of(request)
        peer = self._forwarding.owner_elsewhere(shard_id)
        call = _Submitted(self, self._forwarding, request, done)
        if peer is None:
            self._here.submit_to(shard_id, request, call)
        else:
            call.ask(peer)
        return None if call.is_answered or not parks_for_ms(request) else call.cancel

    def is_final(self, answer: Answer) -> bool:
        """See `Forwarding.is_final`."""
        return answer.reply.error is ErrorCode.NONE or self._forwarding.is_final(answer)

    def go_on(
        self, request: Request, answer: Answer, asked_ms: int, done: Callable[[Answer], None]
    ) -> asyncio.Task[None]:
        """The rest of a call. `asked_ms` counts for heartbeats that wait."""
        steps = self._forwarding.go_on(request, answer, asked_ms, _now_ms())
        return self._finish(request, partial(self._carry_out, steps), done)

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

    def _finish(
        self, request: Request, work: Callable[[], Awaitable[Answer]], done: Callable[[Answer], None]
    ) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(_finished(request, work, done))
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)
        return task

    # --- steps -------------------------------------------------------------------------------------

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
                return await self._here.call(request)
            case step.AskPeer():
                return await self._ask_peer(do)
            case step.ReadOwners(until_ms):
                await self._directory.read_for_waiting(until_ms)
            case step.AwaitArrival(until_ms):
                await self._directory.await_arrival(until_ms)
            case step.Pause(until_ms):
                await asyncio.sleep(max(0, until_ms - _now_ms()) / 1000)
            case step.RecordHeartbeat(request):
                return await self._here.record_heartbeat(request)
        return None

    async def _ask_peer(self, do: step.AskPeer) -> Answer | NoAnswer:
        outcome: asyncio.Future[Answer | NoAnswer] = asyncio.get_running_loop().create_future()
        cancel = self.ask(do, partial(_settle, outcome))
        try:
            return await outcome
        finally:
            cancel()

    def ask(self, do: step.AskPeer, done: Callable[[Answer | NoAnswer], None]) -> Cancel:
        """Ask a peer; `done` gets the outcome, unless the result is called before."""
        if not do.parks:
            return self.peers.submit(do.peer, do.request, partial(self._count, done))
        key = object()

        def settle(outcome: Answer | NoAnswer) -> None:
            if self._parked.pop(key, None) is not None:
                self._count(done, outcome)

        def cancel() -> None:
            if self._parked.pop(key, None) is not None:
                there()

        there = self.peers.submit(do.peer, do.request, settle)
        self._parked[key] = there, done
        return cancel

    def _count(self, done: Callable[[Answer | NoAnswer], None], outcome: Answer | NoAnswer) -> None:
        self._telemetry.on_forwarded(UNREACHABLE if isinstance(outcome, NoAnswer) else outcome.reply.error)
        done(outcome)


def _settle(outcome: asyncio.Future[Answer | NoAnswer], value: Answer | NoAnswer) -> None:
    if not outcome.done():  # Its caller may have been cancelled in this turn.
        outcome.set_result(value)


class _Submitted(Call):
    """A call without a task. Another owner is asked where the first answer is not final."""

    __slots__ = ("_asked_ms", "_forwarder", "_forwarding", "_is_cancelled", "_request", "_rest", "_there")

    def __init__(
        self, forwarder: Forwarder, forwarding: Forwarding, request: Submitted, done: Callable[[Answer], None]
    ) -> None:
        super().__init__(done)
        self._forwarder = forwarder
        self._forwarding = forwarding
        self._request = request
        # Of a heartbeat alone: to look at the clock is a system call in Python 3.11, in `get_running_loop`.
        self._asked_ms = _now_ms() if isinstance(request, Heartbeat) else 0
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
        do = self._forwarding.route_to(peer, self._request)
        if isinstance(do, Answer):
            self.done(do)
        else:
            self._there = self._forwarder.ask(do, partial(self._peer_answered, do))

    def _peer_answered(self, do: step.AskPeer, outcome: Answer | NoAnswer) -> None:
        self.answered(self._forwarding.answer_of(do, outcome))

    def answered(self, answer: Answer) -> None:
        """The answer of the first owner is there."""
        if self._is_cancelled:
            return  # It was under way. Nothing could cancel the rest.
        if self._forwarder.is_final(answer):
            self.done(answer)
        else:
            self._rest = self._forwarder.go_on(self._request, answer, self._asked_ms, self.done)

    def cancel(self) -> None:
        """Its client is gone."""
        self._is_cancelled = True
        super().cancel()
        if self._there is not None:
            self._there()
        if self._rest is not None:
            self._rest.cancel()


async def _finished(request: Request, work: Callable[[], Awaitable[Answer]], done: Callable[[Answer], None]) -> None:
    try:
        answer = await work()
    except Exception as error:
        # A bug of ours. The outcome of the request is unknown, and this code says so to a client.
        logger.error("a forwarded request failed", exc_info=error)
        answer = Answer(refuse(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, "an internal error; see the log"))
    done(answer)


def _now_ms() -> int:
    return round(asyncio.get_running_loop().time() * 1000)
