"""What the member tests play on: the real coordinator on a store in memory, and cables that can be pulled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from rota.client import Client, Consumer, CoordinatorUnreachable, Member, TopicPartition
from rota.client.transports import Answer, GroupEvent
from rota.protocol.calls import refuse
from rota.protocol.errors import ErrorCode
from rota.protocol.limits import Limits
from rota.protocol.messages import CommitOffsets, JoinReply, LeaveGroup, Request
from rota.protocol.wire.replies import Received
from rota.server.runtime.coordinator import LocalCoordinator
from rota.testing.in_memory import InMemoryTransport
from rota.testing.memory import MemoryStore
from tests.client.virtual_time import LoopClock

Partitions = tuple[TopicPartition, ...]
GROUP = "indexers"
TOPICS = {"work": 12}
SESSION_S = 3.0


class Cable(InMemoryTransport):
    """A way to the coordinator that can be pulled out (`pull`), or go silent (`is_silent`): nothing ever comes back."""

    def __init__(self, coordinator: LocalCoordinator) -> None:
        super().__init__(coordinator)
        self.is_silent = False
        self.is_pulled = False
        self.commits_may_go = asyncio.Event()
        """Commits wait here on their way, so that a test can let something else happen first."""
        self.commits_may_go.set()
        self.lost_answers: list[type[Request]] = []
        """Of each of these the next request is carried out, and its answer is lost."""
        self.naming_s = 0.0
        """How long the answer that gives a new member its id is under way."""
        self.electing_s: float | None = 0.0
        """How long the answer to a candidate's join is under way; None: it is lost."""
        self.throttled_ms: int | None = None
        """The next request is refused, with so much patience asked for."""
        self.refused: list[tuple[type[Request], ErrorCode]] = []
        """Of each of these the next request whose answer is not lost is refused so, before the coordinator gets it."""
        self.requests: list[Request] = []
        self._under_way: set[asyncio.Task[Answer]] = set()

    async def send(self, request: Request, *, timeout_ms: int) -> Answer:
        self.requests.append(request)
        if self.is_pulled:
            raise CoordinatorUnreachable("the cable is pulled")
        if self.is_silent:
            await asyncio.sleep(timeout_ms / 1000)
            raise CoordinatorUnreachable("silence")
        if self.throttled_ms is not None:
            asked_ms, self.throttled_ms = self.throttled_ms, None
            return Received(refuse(request, ErrorCode.THROTTLED, "too much"), retry_after_ms=asked_ms)
        for kind, code in self.refused:
            if isinstance(request, kind) and kind not in self.lost_answers:
                self.refused.remove((kind, code))
                return Received(refuse(request, code, "for the test"))
        if isinstance(request, CommitOffsets):
            await self.commits_may_go.wait()
        call = asyncio.ensure_future(super().send(request, timeout_ms=timeout_ms))
        self._under_way.add(call)
        try:
            answer = await call
            if answer.reply.error is ErrorCode.MEMBER_ID_REQUIRED:
                await asyncio.sleep(self.naming_s)
            if isinstance(answer.reply, JoinReply) and answer.reply.assignment is not None:
                if self.electing_s is None:
                    raise CoordinatorUnreachable("the answer was lost")
                await asyncio.sleep(self.electing_s)
            if type(request) in self.lost_answers:
                self.lost_answers.remove(type(request))
                raise CoordinatorUnreachable("the answer was lost")
            return answer
        except asyncio.CancelledError:
            if self.is_pulled:
                raise CoordinatorUnreachable("the cable was pulled") from None
            call.cancel()
            raise
        finally:
            self._under_way.discard(call)

    async def watch(self, namespace: str, group_id: str, after_revision: int | None) -> AsyncIterator[GroupEvent]:
        if self.is_pulled:
            raise CoordinatorUnreachable("the cable is pulled")
        async for event in super().watch(namespace, group_id, after_revision):
            yield event

    def pull(self) -> None:
        self.is_pulled = True
        for call in self._under_way:
            call.cancel()

    def plug_in(self) -> None:
        self.is_pulled = False


@dataclass
class Worker:
    """A member with a diary: what happened to it and when."""

    cable: Cable
    client: Client
    diary: list[tuple[float, str, Partitions]] = field(default_factory=list)
    drain_s: float = 0.0
    """How long its `on_revoked` takes."""

    def member(
        self,
        *,
        session_timeout: float = SESSION_S,
        rebalance_timeout: float = 60.0,
        group_instance_id: str | None = None,
        strategy: str = "range",
    ) -> Consumer:
        return self.client.consumer(
            GROUP,
            TOPICS,
            strategy,
            session_timeout=session_timeout,
            rebalance_timeout=rebalance_timeout,
            group_instance_id=group_instance_id,
            on_assigned=lambda added, _all: self.note("assigned", added),
            on_revoked=self.on_revoked,
            on_lost=lambda share: self.note("lost", share),
        )

    def note(self, what: str, share: Partitions) -> None:
        self.diary.append((asyncio.get_running_loop().time(), what, share))

    async def on_revoked(self, share: Partitions) -> None:
        await asyncio.sleep(self.drain_s)
        self.note("revoked", share)

    async def committed(self) -> dict[int, int]:
        """The offsets of the group by partition."""
        return {each.partition: each.offset for each in await self.client.offsets(GROUP)}

    @property
    def leaves(self) -> int:
        return sum(isinstance(request, LeaveGroup) for request in self.cable.requests)

    @property
    def deeds(self) -> list[str]:
        return [what for _, what, _ in self.diary]

    def when(self, what: str) -> float:
        """When that happened last."""
        return next(at for at, deed, _ in reversed(self.diary) if deed == what)


@asynccontextmanager
async def a_coordinator() -> AsyncIterator[LocalCoordinator]:
    """The real one, in the time of the loop. Rebalances start at once."""
    clock = LoopClock()
    store = MemoryStore(clock.monotonic_ms)
    await store.open(1)
    limits = Limits(initial_rebalance_delay_ms=50)
    async with LocalCoordinator(store, shard_count=1, limits=limits, clock=clock) as coordinator:
        await coordinator.wait_until_ready()
        yield coordinator


def a_worker(coordinator: LocalCoordinator, name: str = "w", *, drain_s: float = 0.0) -> Worker:
    cable = Cable(coordinator)
    return Worker(cable, Client(cable, client_id=name), drain_s=drain_s)


async def all_partitions_are_shared(members: Sequence[Member[Partitions]]) -> None:
    """Wait until all members are in one generation and hold the topic between them, each partition once."""
    await until(lambda: _shared(members))


async def until(is_so: Callable[[], bool]) -> None:
    """Let virtual time pass until something is so."""
    while not is_so():  # noqa: ASYNC110 — a condition on the outside of a member has no event; the time is not real
        await asyncio.sleep(0.01)


async def within(seconds: float, is_so: Callable[[], bool], otherwise: Callable[[], object]) -> None:
    """Wait until something is so, and fail with `otherwise()` where it takes longer."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not is_so():
        assert asyncio.get_running_loop().time() < deadline, otherwise()
        await asyncio.sleep(0.01)


def sizes(members: Sequence[Consumer]) -> list[int]:
    return [len(member.assignment or ()) for member in members]


def _shared(members: Sequence[Member[Partitions]]) -> bool:
    shares = [member.assignment for member in members]
    held = [partition for share in shares if share is not None for partition in share]
    one_generation = len({member.generation_id for member in members}) == 1
    return one_generation and None not in shares and sorted(held) == [("work", number) for number in range(12)]
