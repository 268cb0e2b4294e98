"""The shell of `rota.replica.forwarding`: asks this replica's shards and its peers, and waits where a call waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Protocol

from rota.protocol.calls import refuse
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import Heartbeat, HeartbeatMany, Request, parks_for_ms
from rota.replica import forwarding as step
from rota.replica.forwarding import (
    DRAINING,
    FORWARDED_AT_ONCE,
    ForwardedAtOnce,
    Forwarding,
    NoAnswer,
    Step,
    Steps,
    Submitted,
)
from rota.replica.listing import Listed
from rota.replica.ports import Answer, Cancel, JournalEvent, Replica, ShardOwner
from rota.runtime.directory import Directory
from rota.runtime.host import Call

UNREACHABLE = "UNREACHABLE"
"""What a call counts as that its peer did not answer."""

logger = logging.getLogger(__name__)


class PeerUnreachable(Exception):
    """The peer did not answer. Whether it acted on the request is not known."""


class Peers(Protocol):
    """The other replicas, over one connection each."""

    async def call(self, peer: Replica, request: Request) -> Answer:
        """Ask a peer about a shard of its own; raises `PeerUnreachable`."""

    def submit(self, peer: Replica, request: ForwardedAtOnce, done: Callable[[Answer | NoAnswer], None]) -> None:
        """As `call` for a request that does not wait, as a rule without a task; `done` gets the outcome, once."""

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


class Forwarder:
    """Answers a client's call wherever its shard is.

    `answer`, `submit` and `record` ask this replica: for an answer of its own shards, for the same without a task where
    the shard's number is known, and for `RecordHeartbeat`.
    """

    def __init__(
        self,
        forwarding: Forwarding,
        directory: Directory,
        peers: Peers,
        *,
        answer: Callable[[Request], Awaitable[Answer]],
        submit: Callable[[int, Submitted, Call], None],
        record: Callable[[Heartbeat | HeartbeatMany], Awaitable[Answer | None]],
        on_forwarded: Callable[[str], None],
    ) -> None:
        self.peers = peers
        self._forwarding = forwarding
        self._directory = directory
        self._answer = answer
        self._submit = submit
        self._record = record
        self._on_forwarded = on_forwarded
        self._waiting: dict[asyncio.Timeout, None] = {}
        self._finishing: set[asyncio.Future[None]] = set()

    async def call(self, request: Request) -> Answer:
        """See `Forwarding.call`."""
        forwarding, asked_ms = self._forwarding, _now_ms()
        if isinstance(request, Listed):
            return await self._carry_out(forwarding.call(request, asked_ms))
        match forwarding.route(request):
            case Answer() as answer:
                return answer
            case step.AskHere():
                answer = await self._answer(request)
            case step.AskPeer() as do:
                answer = forwarding.answer_of(do, await self._ask_peer(do))
        if forwarding.is_final(answer):
            return answer
        return await self._carry_out(forwarding.go_on(request, answer, asked_ms, _now_ms()))

    def submit(self, request: Submitted, done: Callable[[Answer], None]) -> Cancel | None:
        """As `call`, without a task where the first answer is final: this replica's, or a peer's to `ForwardedAtOnce`.

        `done` gets the answer, unless the call parks and is cancelled before.
        """
        shard_id = self._forwarding.shard_of(request)
        peer = self._forwarding.owner_elsewhere(shard_id)
        if peer is None:
            call = _CallHere(self, request, done)
            self._submit(shard_id, request, call)
            return None if call.is_answered or not parks_for_ms(request) else call.cancel
        do = self._forwarding.route_to(peer, request)
        if isinstance(do, step.AskPeer) and not do.parks and isinstance(request, FORWARDED_AT_ONCE):
            self.peers.submit(do.peer, request, partial(self._peer_answered, do, done))
            return None
        going_on = self._finish(request, partial(self.call, request), done)
        return going_on.cancel if parks_for_ms(request) else None

    def _peer_answered(self, asked: step.AskPeer, done: Callable[[Answer], None], outcome: Answer | NoAnswer) -> None:
        if isinstance(outcome, NoAnswer):
            self._on_forwarded(UNREACHABLE)
            outcome = self._forwarding.answer_of(asked, outcome)
        else:
            self._on_forwarded(outcome.reply.error)
        if self.is_final(outcome):
            done(outcome)
        else:
            self.go_on(asked.request, outcome, 0, done)

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
        for waiting in self._waiting:
            waiting.reschedule(asyncio.get_running_loop().time())

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
                return await self._answer(request)
            case step.AskPeer():
                return await self._ask_peer(do)
            case step.ReadOwners(until_ms):
                await self._directory.read_for_waiting(until_ms)
            case step.AwaitArrival(until_ms):
                await self._directory.await_arrival(until_ms)
            case step.Pause(until_ms):
                await asyncio.sleep(max(0, until_ms - _now_ms()) / 1000)
            case step.RecordHeartbeat(request):
                return await self._record(request)
        return None

    async def _ask_peer(self, do: step.AskPeer) -> Answer | NoAnswer:
        try:
            answer = await self._called(do)
        except PeerUnreachable as error:
            self._on_forwarded(UNREACHABLE)
            return NoAnswer(str(error))
        except TimeoutError:
            return NoAnswer(DRAINING)
        self._on_forwarded(answer.reply.error)
        return answer

    async def _called(self, do: step.AskPeer) -> Answer:
        """Raises `PeerUnreachable`, and `TimeoutError` where this replica drains."""
        if not do.parks:
            return await self.peers.call(do.peer, do.request)
        async with asyncio.timeout(None) as waiting:
            self._waiting[waiting] = None
            try:
                return await self.peers.call(do.peer, do.request)
            finally:
                del self._waiting[waiting]


class _CallHere(Call):
    """A call of a shard of this replica; another owner is asked where the first answer is not final."""

    __slots__ = ("_asked_ms", "_forwarder", "_is_cancelled", "_request", "_rest")

    def __init__(self, forwarder: Forwarder, request: Submitted, done: Callable[[Answer], None]) -> None:
        super().__init__(done)
        self._forwarder = forwarder
        self._request = request
        # Of a heartbeat alone: to look at the clock is a system call in Python 3.11, in `get_running_loop`.
        self._asked_ms = _now_ms() if isinstance(request, Heartbeat) else 0
        self._rest: asyncio.Task[None] | None = None
        self._is_cancelled = False

    @property
    def is_answered(self) -> bool:
        """Whether the answer was there at once."""
        return self.host is None and self._rest is None

    def answered(self, answer: Answer) -> None:
        """The shard's answer is there."""
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
