"""A coordinator with scripted answers: the API's port, without anything behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from rota.core.replica.forwarding import Submitted
from rota.core.replica.ports import Answer, Cancel, JournalEvent, ShardOwner
from rota.protocol.calls import refuse
from rota.protocol.errors import ErrorCode, check_not_pruned
from rota.protocol.messages import (
    GetLeader,
    Heartbeat,
    HeartbeatError,
    HeartbeatMany,
    HeartbeatManyReply,
    HeartbeatReply,
    Reply,
    Request,
    VerifyFence,
)

REVISION, EPOCH = 42, 3


class ScriptedCoordinator:
    """Set `reply` to what the next calls are answered; None parks them until `answer_one_parked` or `drain`."""

    def __init__(self) -> None:
        self.shard_count = 4
        self.changed = asyncio.Condition()
        self.parked: dict[asyncio.Future[Answer], Request] = {}
        self.watchers = 0
        self._notifying: set[asyncio.Task[None]] = set()
        self.forget()

    def forget(self) -> None:
        """As new, for the next test."""
        self.requests: list[Request] = []
        stable = HeartbeatReply(generation_id=7, state="Stable")
        self.reply: Reply | Exception | Callable[[Request], Reply | None] | None = stable
        self.owner = ""
        self.heartbeats_at_once = True
        self.cancelled: list[Request] = []
        self.journal: list[JournalEvent] = []
        self.journal_ends = False
        self.first_revision = 1
        self.is_ready = (True, "")

    async def call(self, request: Request) -> Answer:
        await self._note(request)
        if isinstance(self.reply, Exception):
            raise self.reply
        reply = self._reply_to(request)
        return await self._park(request) if reply is None else Answer(reply, REVISION, EPOCH, self.owner)

    def try_heartbeat(self, request: Heartbeat | HeartbeatMany) -> Answer | None:
        is_parked = isinstance(request, Heartbeat) and request.wait_ms
        if not self.heartbeats_at_once or is_parked or isinstance(self.reply, Exception):
            return None
        reply = self.reply(request) if callable(self.reply) else self.reply
        if not isinstance(reply, HeartbeatReply):
            return None
        self.requests.append(request)
        return Answer(_of_all(request, reply) if isinstance(request, HeartbeatMany) else reply, REVISION, EPOCH)

    def try_read(self, request: VerifyFence | GetLeader) -> Answer | None:
        waits = request.sign if isinstance(request, VerifyFence) else request.wait_ms
        reply = self.reply(request) if callable(self.reply) else self.reply
        if not self.heartbeats_at_once or waits or reply is None or isinstance(reply, Exception):
            return None
        self.requests.append(request)
        return Answer(reply, REVISION, EPOCH, self.owner)

    def submit(self, request: Submitted, done: Callable[[Answer], None]) -> Cancel | None:
        self.requests.append(request)
        if isinstance(self.reply, Exception):
            raise self.reply
        reply = self._reply_to(request)
        if reply is not None:
            done(Answer(reply, REVISION, EPOCH, self.owner))
            return None
        return self._park_submitted(request, done).cancel

    def _reply_to(self, request: Request) -> Reply | None:
        assert not isinstance(self.reply, Exception)
        reply = self.reply(request) if callable(self.reply) else self.reply
        if isinstance(request, HeartbeatMany) and isinstance(reply, HeartbeatReply):
            return _of_all(request, reply)
        return reply

    async def check_revision(self, namespace: str, group_id: str, after_revision: int) -> None:
        check_not_pruned(after_revision, self.first_revision)

    async def watch(self, namespace: str, group_id: str, after_revision: int | None) -> AsyncIterator[JournalEvent]:
        seen = self.journal[-1].seq if after_revision is None and self.journal else after_revision or 0
        self.watchers += 1
        await self._notify()
        try:
            while True:
                check_not_pruned(seen, self.first_revision)
                for event in [event for event in self.journal if event.seq > seen]:
                    seen = event.seq
                    yield event
                if self.journal_ends:
                    return
                async with self.changed:
                    await self.changed.wait()
        finally:
            self.watchers -= 1
            await self._notify()

    async def events(self, shard_id: int, after_seq: int, limit: int) -> list[JournalEvent]:
        check_not_pruned(after_seq, self.first_revision)
        return [event for event in self.journal if event.seq > after_seq][:limit]

    def locate(self, namespace: str, group_id: str) -> ShardOwner:
        return ShardOwner(2, "replica-1", "http://10.0.0.7:8080", EPOCH, 4_200, REVISION, "replica-0")

    def owners(self) -> list[ShardOwner]:
        return [self.locate("", "")]

    def ready(self) -> tuple[bool, str]:
        return self.is_ready

    async def drain(self) -> None:
        for future, request in list(self.parked.items()):
            future.set_result(Answer(refuse(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, "draining")))

    async def stop(self) -> None:
        await self.drain()

    # --- what tests say and ask ---------------------------------------------------------------------

    async def append(self, *events: JournalEvent) -> None:
        self.journal += events
        await self._notify()

    async def prune(self, up_to: int) -> None:
        self.first_revision = up_to + 1
        self.journal = [event for event in self.journal if event.seq > up_to]
        await self._notify()

    async def end_journal(self) -> None:
        self.journal_ends = True
        await self._notify()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Return once `holds()`; everything that changes here notifies."""
        async with asyncio.timeout(60), self.changed:
            await self.changed.wait_for(holds)

    async def until_parked(self, calls: int) -> None:
        await self.until(lambda: len(self.parked) == calls)

    async def until_cancelled(self, calls: int) -> None:
        await self.until(lambda: len(self.cancelled) == calls and not self.parked)

    async def until_watched(self, streams: int) -> None:
        await self.until(lambda: self.watchers == streams)

    def answer_one_parked(self, reply: Reply) -> None:
        next(iter(self.parked)).set_result(Answer(reply, REVISION, EPOCH))

    async def _park(self, request: Request) -> Answer:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.parked[future] = request
        await self._notify()
        try:
            return await future
        except asyncio.CancelledError:
            self.cancelled.append(request)
            raise
        finally:
            del self.parked[future]
            await self._notify()

    def _park_submitted(self, request: Request, done: Callable[[Answer], None]) -> asyncio.Future[Answer]:
        def ended(future: asyncio.Future[Answer]) -> None:
            del self.parked[future]
            if future.cancelled():
                self.cancelled.append(request)
            else:
                done(future.result())
            self._notify_later()

        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.parked[future] = request
        future.add_done_callback(ended)
        self._notify_later()
        return future

    async def _note(self, request: Request) -> None:
        self.requests.append(request)
        await self._notify()

    def _notify_later(self) -> None:
        task = asyncio.get_running_loop().create_task(self._notify())
        self._notifying.add(task)
        task.add_done_callback(self._notifying.discard)

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()


def _of_all(request: HeartbeatMany, reply: HeartbeatReply) -> HeartbeatManyReply:
    """The answer to several members that get the same reply each."""
    failed = request.members if reply.error is not ErrorCode.NONE else ()
    errors = tuple(HeartbeatError(beat.member_id, reply.error) for beat in failed)
    return HeartbeatManyReply(generation_id=reply.generation_id, state=reply.state, errors=errors)
