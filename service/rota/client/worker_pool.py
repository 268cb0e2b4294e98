"""Workers that split shards: one task for each partition that is held, for as long as it is held."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeAlias

from rota.assignors import TopicPartition
from rota.client.callbacks import Listeners
from rota.client.consumer import Consumer
from rota.client.consumer_protocol import Partitions
from rota.client.errors import CoordinatorError, MembershipLost, Unavailable
from rota.client.running import CLOSE_TIMEOUT_S, Running
from rota.client.stop_signal import StopSignal
from rota.client.tasks import GRACE_S
from rota.client.user_functions import check_async_work, run_work
from rota.protocol.defaults import BACKOFF_FIRST_MS, STOP_DRAIN_MS
from rota.protocol.messages import OffsetToCommit, TopicPartitions

_SHOWN = 5
"""Shards that one line of the log names."""


class Shard:
    """One partition while this process works on it."""

    def __init__(self, consumer: Consumer, place: TopicPartition) -> None:
        self._consumer = consumer
        self.topic: str = place.topic
        self.partition: int = place.partition
        self.stopping: StopSignal = StopSignal()
        """Set when the shard is to be given up: work that ends by itself within `drain_ms` is not cancelled."""
        self._has_ended = False
        """Whether its work was cancelled."""

    @property
    def token(self) -> int:
        """The fencing token: give it to whatever you write to, and have older ones refused there."""
        return self._consumer.fencing_token

    @property
    def generation_id(self) -> int:
        """The generation: with `member_id`, what `rota.commit_offsets` in a transaction asks for."""
        return self._consumer.generation_id

    @property
    def member_id(self) -> str:
        """Which member of its group this process is: what a fence asks for beside the generation or the token."""
        return self._consumer.member_id

    @property
    def valid_until(self) -> float | None:
        """When the shard is lost unless it is renewed, in seconds of the event loop's clock; None once it is."""
        return self._consumer.valid_until if self.is_held else None

    @property
    def is_held(self) -> bool:
        """Whether this process may work on the shard now, by the clock; False once its work was cancelled. Any thread
        may ask.
        """
        return not self._has_ended and self._consumer.owns(TopicPartition(self.topic, self.partition))

    def end(self) -> None:
        """The work on it is cancelled: what follows is not this shard's any more."""
        self._has_ended = True
        self.stopping.set()

    def raise_if_lost(self) -> None:
        """Raise `MembershipLost` unless the shard is held now. To be called before what must not be done twice. Any
        thread may call it.
        """
        if not self.is_held:
            self._consumer.check_deadline()
            raise MembershipLost(f"{self.topic}/{self.partition} is not held any more")

    async def position(self) -> int:
        """Where to go on: the group's last commit, 0 where there is none. Retried for as long as the shard is held."""
        while True:
            try:
                (found,) = await self._consumer.fetch_offsets([TopicPartitions(self.topic, (self.partition,))])
                return max(found.offset, 0)
            except Unavailable:
                if not self.is_held:
                    raise
                await asyncio.sleep(BACKOFF_FIRST_MS / 1000)

    async def commit(self, offset: int, metadata: str = "", retention_time_ms: int | None = None) -> None:
        """Record that everything before `offset` is done; `MembershipLost` if the shard is another's by now.

        `retention_time_ms` later the offset may expire; without it, the server's retention counts.
        """
        self.raise_if_lost()
        item = OffsetToCommit(
            self.topic, self.partition, offset, metadata=metadata, retention_time_ms=retention_time_ms
        )
        await self._consumer.commit([item])

    def store(self, offset: int, metadata: str = "", retention_time_ms: int | None = None) -> None:
        """Note that everything before `offset` is done. The pool commits it when the shard is revoked and when the pool
        is closed, and every `auto_commit_ms` where that is set. `retention_time_ms`: as in `commit`.
        """
        self._consumer.store(self.topic, self.partition, offset, metadata, retention_time_ms)


Work: TypeAlias = Callable[[Shard], Awaitable[None]]
"""Works on a shard until it is cancelled; if it returns, the shard is done for as long as it is held."""


class WorkerPool(Running):
    """Runs `work(shard)` for each shard that this process holds, for the time of an `async with` block, from `start` to
    `close`, or for that of `run`.

    A shard that is revoked: `shard.stopping` is set, after `drain_ms` the task is cancelled, and only when it has ended
    is the shard free for others. One that is lost is cancelled at once. If `work` raises, the block ends with that,
    and the shard is reported: a group with a quarantine leaves it out where that happens again and again.
    """

    def __init__(self, consumer: Callable[[Listeners[Partitions]], Consumer], work: Work, *, drain_ms: int) -> None:
        """`consumer` makes the pool's consumer, which calls these listeners."""
        super().__init__()
        check_async_work(work)
        self._work = work
        self._drain_s = drain_ms / 1000
        self._tasks: dict[TopicPartition, asyncio.Task[None]] = {}
        self._shards: dict[TopicPartition, Shard] = {}
        self._changed = asyncio.Event()
        self.consumer: Consumer = consumer(Listeners(self._start_work, self._stop_work, self._lose_work))
        """The membership underneath, for everything but shards."""
        self.consumer._stats.set_kind("worker_pool")
        self.consumer._reminder.ask(self._describe_work)

    async def __aenter__(self) -> Self:
        await self.consumer.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.consumer.__aexit__(kind, error, trace)
        finally:
            await self._end_all()
            self._notify()

    @property
    def is_open(self) -> bool:
        return self.consumer.is_open

    @property
    def _is_new(self) -> bool:
        return self.consumer._is_new

    @property
    def shards(self) -> tuple[TopicPartition, ...]:
        """What this process holds now. Any thread may ask."""
        return self.consumer.assignment or ()

    @property
    def trouble(self) -> str:
        """See `Member.trouble`."""
        return self.consumer.trouble

    async def run(
        self, *, drain_ms: int = STOP_DRAIN_MS, handle_signals: bool = True, until_done: bool = False
    ) -> None:
        """Work until a signal, `stop` or cancellation; inside or outside of the block.

        SIGTERM and SIGINT end it in order, where the program handles them not itself: no work begins any more,
        `shard.stopping` is set, work that goes on after `drain_ms` is cancelled, progress is committed, and the group
        is left. A second signal cancels at once.

        Args:
            drain_ms: How long work may go on after a signal. The default leaves time for the rest before Docker, which
                waits for 10 s, kills the process.
            handle_signals: Whether SIGTERM and SIGINT are handled here.
            until_done: Also stop once the work on all shards that are held has returned; see `wait_done`.
        """
        self._stop_drain_s = max(drain_ms / 1000, self._drain_s)
        with self._only_run():
            async with self._own_block_for_run():
                await self._run_in_block(handle_signals, until_done)

    async def _run_in_block(self, handle_signals: bool, until_done: bool) -> None:
        finishing = asyncio.ensure_future(self._stop_when_done()) if until_done else None
        try:
            await self._run_until_stopped(handle_signals=handle_signals)
        finally:
            if finishing is not None:
                finishing.cancel()

    async def _stop_when_done(self) -> None:
        with suppress(CoordinatorError):  # The run itself raises what ended the membership.
            await self.wait_done()
            if not self._stops.in_order.is_set():  # A second request would hurry the one that is under way.
                self.stop()

    async def wait_done(self) -> None:
        """Return once this process holds shards (maybe none) and the work on each of them has returned.

        Raises:
            MembershipLost: The pool was closed meanwhile.
            RuntimeError: The block was not entered.
        """
        await self._until_entered()
        await self.consumer.wait_assigned()
        while self.consumer.assignment is None or not self._is_done():
            await self._changed.wait()
            await self.consumer.wait_assigned()

    def _is_done(self) -> bool:
        return all(self._has_returned(place) for place in self.shards)

    def _has_returned(self, place: TopicPartition) -> bool:
        """Whether the work on a shard has come to its end by itself."""
        task, shard = self._tasks.get(place), self._shards.get(place)
        return task is not None and task.done() and shard is not None and not shard._has_ended

    def _describe_work(self) -> str:
        names = [f"{place.topic}/{place.partition}" for place, task in self._tasks.items() if not task.done()]
        shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        return f"the work of {shown}" if names else self.consumer._holding.at_work()

    # --- closing ------------------------------------------------------------------------------

    async def _close_for_stop(self) -> None:
        self._drain_s = max(self._drain_s, self._stop_drain_s)
        await self.close(CLOSE_TIMEOUT_S + self._drain_s)

    async def _close(self, timeout_s: float) -> None:
        try:
            await self.consumer._close(timeout_s)
        finally:
            self._notify()

    def _close_now(self) -> None:
        self.consumer._close_now()

    def _answer_within(self, seconds: float) -> None:
        self.consumer._answer_within(seconds)

    def _is_inside(self) -> bool:
        return self.consumer._is_inside()

    async def _until_over(self) -> None:
        await self.consumer._until_over()

    def _failure_at_end(self) -> BaseException | None:
        return self.consumer._failure_at_end()

    # --- what the consumer says ---------------------------------------------------------------

    def _start_work(self, added: Partitions, _held: Partitions) -> None:
        for place in added:
            shard = self._shards[place] = Shard(self.consumer, place)
            self._tasks[place] = asyncio.create_task(self._run(shard), name=f"{place.topic}/{place.partition}")
        self._notify()

    async def _stop_work(self, removed: Partitions) -> None:
        for place in removed:
            self._shards[place].stopping.set()
        await _ended([self._tasks[place] for place in removed], self._drain_s)
        await self._abandon_work(removed)

    async def _abandon_work(self, removed: Partitions) -> None:
        held = [place for place in removed if place in self._tasks]
        self._cancel(held)
        await _ended([self._tasks[place] for place in held])
        for place in held:
            self._tasks.pop(place, None)
            self._shards.pop(place, None)
        self._notify()

    async def _lose_work(self, removed: Partitions) -> None:
        """A pool that gave its share up for lack of progress comes back once that work has ended."""
        await self._abandon_work(removed)
        self.consumer.come_back_if_away()

    def _cancel(self, places: Iterable[TopicPartition]) -> None:
        """Once: a second cancellation would interrupt what the work does at its end."""
        for place in places:
            if not self._shards[place]._has_ended:
                self._shards[place].end()
                self._tasks[place].cancel()

    async def _end_all(self) -> None:
        self._cancel(self._tasks)
        await _ended(self._tasks.values(), GRACE_S)

    async def _run(self, shard: Shard) -> None:
        try:
            await run_work(self._work, shard)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if await self._is_failure(shard, error):
                self.consumer.fail(error, f"{shard.topic}/{shard.partition}")
        finally:
            self._notify()

    async def _is_failure(self, shard: Shard, error: BaseException) -> bool:
        """Not where the shard is on its way out: a commit may be rejected before its work is cancelled."""
        if not isinstance(error, CoordinatorError):
            return True
        stopping = asyncio.ensure_future(shard.stopping.wait())
        settled = asyncio.ensure_future(self.consumer._until_settled())
        try:
            await asyncio.wait((stopping, settled), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            settled.cancel()
        return shard.is_held and not shard.stopping.is_set()

    def _notify(self) -> None:
        if all(task.done() for task in self._tasks.values() if task is not asyncio.current_task()):
            self.consumer.rest()
        self._changed.set()
        self._changed.clear()


async def _ended(tasks: Iterable[asyncio.Task[None]], timeout_s: float | None = None) -> None:
    """Wait for the end of tasks, whatever it is; their errors have been taken care of."""
    if tasks := list(tasks):
        await asyncio.wait(tasks, timeout=timeout_s)
