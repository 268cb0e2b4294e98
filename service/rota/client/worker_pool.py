"""Workers that split shards: one task for each partition that is held, for as long as it is held."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Self, TypeAlias

from rota.assignors import TopicPartition
from rota.client.consumer import Consumer
from rota.client.consumer_protocol import Partitions
from rota.client.errors import MembershipLost
from rota.protocol.messages import OffsetToCommit, TopicPartitions


class Shard:
    """One partition while this process works on it."""

    def __init__(self, consumer: Consumer, place: TopicPartition) -> None:
        self._consumer = consumer
        self.topic: str = place.topic
        self.partition: int = place.partition
        self.stopping: asyncio.Event = asyncio.Event()
        """Set when the shard is to be given up: work that ends by itself within `drain_ms` is not cancelled."""

    @property
    def token(self) -> int:
        """The fencing token: give it to whatever you write to, and have older ones refused there."""
        return self._consumer.generation_id

    @property
    def member_id(self) -> str:
        """Who this process is in its group: what a fence in a transaction asks for beside the token."""
        return self._consumer.member_id

    @property
    def valid_until(self) -> float | None:
        """When the shard is lost unless it is renewed, in seconds of the event loop's clock; None once it is."""
        return self._consumer.valid_until if self.is_held else None

    @property
    def is_held(self) -> bool:
        """Whether the shard is this process's now, by the clock."""
        return self._consumer.owns(TopicPartition(self.topic, self.partition))

    def raise_if_lost(self) -> None:
        """Raise `MembershipLost` unless the shard is held now. To be called before what must not be done twice."""
        if not self.is_held:
            self._consumer.check_deadline()
            raise MembershipLost(f"{self.topic}/{self.partition} is not held any more")

    async def position(self) -> int:
        """Where to go on: what the group committed last, 0 where nothing was."""
        (found,) = await self._consumer.fetch_offsets([TopicPartitions(self.topic, (self.partition,))])
        return max(found.offset, 0)

    async def commit(self, offset: int, metadata: str = "") -> None:
        """Record that everything before `offset` is done; `MembershipLost` if the shard is another's by now."""
        self.raise_if_lost()
        await self._consumer.commit([OffsetToCommit(self.topic, self.partition, offset, metadata=metadata)])

    def store(self, offset: int, metadata: str = "") -> None:
        """As `commit`, at the pool's leisure: every `auto_commit_ms`, and when the shard is given up."""
        self._consumer.store(self.topic, self.partition, offset, metadata)


Work: TypeAlias = Callable[[Shard], Awaitable[None]]
"""Works on a shard until it is cancelled; if it returns, the shard is done for as long as it is held."""


class WorkerPool:
    """Runs `work(shard)` for each shard that this process holds, for the time of an `async with` block.

    A shard that is revoked: `shard.stopping` is set, after `drain_ms` the task is cancelled, and only when it has ended
    is the shard free for others. One that is lost is cancelled at once. If `work` raises, the block ends with that.
    """

    def __init__(self, consumer: Callable[[WorkerPool], Consumer], work: Work, *, drain_ms: int = 0) -> None:
        """`consumer` makes the pool's consumer, which must call its `start`, `stop` and `abandon`."""
        self._work = work
        self._drain_ms = drain_ms
        self._tasks: dict[TopicPartition, asyncio.Task[None]] = {}
        self._shards: dict[TopicPartition, Shard] = {}
        self._changed = asyncio.Event()
        self.consumer: Consumer = consumer(self)
        """The membership underneath, for what is not about shards."""

    async def __aenter__(self) -> Self:
        await self.consumer.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.consumer.__aexit__(kind, error, trace)
        finally:
            self._cancel(self._tasks)
            await _ended(self._tasks.values())

    @property
    def shards(self) -> tuple[TopicPartition, ...]:
        """What this process holds now."""
        return self.consumer.assignment or ()

    async def run(self) -> None:
        """Work until this task is cancelled."""
        async with self:
            await asyncio.Event().wait()

    async def wait_done(self) -> None:
        """Return once this process holds shards (maybe none) and the work on each of them has returned."""
        await self.consumer.wait_assigned()
        while self.consumer.assignment is None or not self._is_done():
            await self._changed.wait()

    def _is_done(self) -> bool:
        return all(place in self._tasks and self._tasks[place].done() for place in self.shards)

    # --- what the consumer says ---------------------------------------------------------------

    def start(self, added: Partitions, _held: Partitions) -> None:
        for place in added:
            shard = self._shards[place] = Shard(self.consumer, place)
            self._tasks[place] = asyncio.create_task(self._run(shard), name=f"{place.topic}/{place.partition}")
        self._tell()

    async def stop(self, removed: Partitions) -> None:
        for place in removed:
            self._shards[place].stopping.set()
        await _ended([self._tasks[place] for place in removed], self._drain_ms / 1000)
        await self.abandon(removed)

    async def abandon(self, removed: Partitions) -> None:
        held = [place for place in removed if place in self._tasks]
        self._cancel(held)
        await _ended([self._tasks[place] for place in held])
        for place in held:
            del self._tasks[place], self._shards[place]
        self._tell()

    def _cancel(self, places: Iterable[TopicPartition]) -> None:
        for place in places:
            self._shards[place].stopping.set()
            self._tasks[place].cancel()

    async def _run(self, shard: Shard) -> None:
        try:
            await self._work(shard)
        except Exception as error:
            # That the shard is not its own any more is no failure of the work: its task was about to be cancelled.
            if shard.is_held or not isinstance(error, MembershipLost):
                self.consumer.fail(error)
        finally:
            self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed.clear()


async def _ended(tasks: Iterable[asyncio.Task[None]], timeout_s: float | None = None) -> None:
    """Wait for the end of tasks, whatever it is; their errors have been taken care of."""
    if tasks := list(tasks):
        await asyncio.wait(tasks, timeout=timeout_s)
