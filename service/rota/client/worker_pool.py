"""Pools of workers that share shards: one task for each held partition."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeAlias

from rota.client.callbacks import Listeners
from rota.client.consumer import Consumer
from rota.client.consumer_protocol import Partitions
from rota.client.errors import CoordinatorError, MembershipLost, Unavailable, without_losses
from rota.client.options import STOP_DRAIN_S, check_seconds, to_ms
from rota.client.running import RunningOver
from rota.client.stop_deadline import Step, cancelled_for
from rota.client.tasks import FinalSignal, first_of, until_ended
from rota.client.user_functions import WorkRetry, check_async_work, run_work
from rota.core.assignors import TopicPartition
from rota.protocol.defaults import BACKOFF_FIRST_MS
from rota.protocol.messages import OffsetToCommit, TopicPartitions

_SHOWN = 5
"""Maximum number of shards in one line of the log."""
_TRIES_OF_A_FALL = 3
"""Number of consecutive failures after which a pool that retries reports the shard to a group with a quarantine."""
_log = logging.getLogger(__name__)


class Shard:
    """One partition while this process works on it."""

    def __init__(self, consumer: Consumer, place: TopicPartition) -> None:
        self._consumer = consumer
        self.topic: str = place.topic
        self.partition: int = place.partition
        self._stopping = FinalSignal()
        self._is_watched = False
        """Whether its work has read `stopping`: other work is not drained."""
        self.promoted: FinalSignal = FinalSignal()
        """Set when this copy is the active one, initially or later; see `role`."""
        self._cancelled_at: float | None = None
        """The time at which its work was cancelled."""
        self._rests = False
        """Whether its work waits for the next attempt."""

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"

    @property
    def role(self) -> str:
        """`active` or `standby`. With strategies such as `redundant(2)`, one of the copies of a partition is active."""
        return "active" if self.promoted.is_set() else "standby"

    @property
    def stopping(self) -> FinalSignal:
        """Set when the shard must be released. Work that has read it has `drain_timeout` to end by itself; other work
        is cancelled at once.
        """
        self._is_watched = True
        return self._stopping

    @property
    def fencing_token(self) -> int:
        """The fencing token: send it to the resources to which you write, and let them reject older ones."""
        return self._consumer.fencing_token

    @property
    def generation_id(self) -> int:
        """The generation: with `member_id`, the argument of `rota.commit_offsets` in a transaction."""
        return self._consumer.generation_id

    @property
    def member_id(self) -> str:
        """This process's member id: a fence needs it with the generation or the token."""
        return self._consumer.member_id

    @property
    def valid_until(self) -> float | None:
        """The time of loss unless the shard is renewed, in seconds of the event loop's clock; None once it is."""
        return self._consumer.valid_until if self.is_held else None

    @property
    def is_held(self) -> bool:
        """Whether this process may work on the shard now, by the clock; False after its work was cancelled. Any thread
        may ask.
        """
        return self._cancelled_at is None and self._consumer.owns(TopicPartition(self.topic, self.partition))

    def _end(self) -> None:
        """End the shard when its work is cancelled: later calls fail."""
        self._cancelled_at = asyncio.get_running_loop().time()
        self._stopping.set()

    def raise_if_lost(self) -> None:
        """Raise `MembershipLost` unless the shard is held now. Call it before an action that must not be done twice.
        Any thread may call it.
        """
        if not self.is_held:
            self._consumer._driver.check()
            raise MembershipLost(f"{self} is not held any more")

    async def position(self) -> int:
        """Return where to continue: the group's last commit, or 0. Retried as long as the shard is held."""
        while True:
            try:
                (found,) = await self._consumer.fetch_offsets([TopicPartitions(self.topic, (self.partition,))])
                return max(found.offset, 0)
            except Unavailable:
                if not self.is_held:
                    raise
                await asyncio.sleep(BACKOFF_FIRST_MS / 1000)

    async def commit(self, offset: int, metadata: str = "", retention_time: float | None = None) -> None:
        """Commit that everything before `offset` is done; raise `MembershipLost` if another member has the shard now.

        `retention_time` seconds later the offset may expire; without it, the server's retention applies.
        """
        self.raise_if_lost()
        item = OffsetToCommit(
            self.topic, self.partition, offset, metadata=metadata, retention_time_ms=to_ms(retention_time)
        )
        await self._consumer.commit([item])

    def store(self, offset: int, metadata: str = "", retention_time: float | None = None) -> None:
        """Store that everything before `offset` is done. The pool commits it every `auto_commit_interval`, when the
        shard is revoked, when the pool is closed, and when work raises. `retention_time`: as in `commit`.
        """
        self._consumer.store(self.topic, self.partition, offset, metadata, retention_time)

    def progress(self) -> None:
        """Report that work on this shard continues, as `store` and `commit` do. See `max_processing_interval`."""
        self._consumer._progress((TopicPartition(self.topic, self.partition),))


Work: TypeAlias = Callable[[Shard], Awaitable[None]]
"""Works on a shard until it is cancelled; if it returns, the shard is done as long as it is held."""


class WorkerPool(RunningOver):
    """Runs `work(shard)` for each shard that this process holds, during an `async with` block, from `start` to `close`,
    or during `run`.

    When a shard is revoked, `shard.stopping` is set, and the task is cancelled, after `drain_timeout` if it has read
    that. Other members get the shard after the task has ended. The task of a lost shard is cancelled at once. If `work`
    raises, all other work stops in order, progress is committed, and the block ends with that error; `run(retry=True)`
    retries that shard. A group with a quarantine excludes a shard that fails repeatedly.
    """

    def __init__(
        self, consumer: Callable[[Listeners[Partitions]], Consumer], work: Work, *, drain_timeout: float
    ) -> None:
        """`consumer` creates the pool's consumer, which calls these listeners."""
        check_async_work(work)
        self._work = work
        check_seconds("drain_timeout", drain_timeout)
        self._drain_s = drain_timeout
        self._tasks: dict[TopicPartition, asyncio.Task[None]] = {}
        self._shards: dict[TopicPartition, Shard] = {}
        self._retries: dict[TopicPartition, WorkRetry] | None = None
        """With `run(retry=True)`: the failures of each shard."""
        self._changed = asyncio.Event()
        self.consumer: Consumer = consumer(Listeners(self._start_work, self._stop_work, self._lose_work))
        """The membership below the pool, for calls that do not concern shards."""
        super().__init__(self.consumer)
        self.consumer._stats.set_kind("worker_pool")
        self.consumer._reminder.at_work = self._describe_work
        self.consumer._stats.troubles_of_work = self._troubles
        self.consumer._on_silence = self._restart

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
            await self.consumer._deadline.wait(self._tasks.values(), Step.END)
            self._notify()

    @property
    def shards(self) -> tuple[TopicPartition, ...]:
        """The shards that this process holds now. Any thread may ask."""
        return self.consumer.assignment or ()

    @property
    def trouble(self) -> str:
        """The trouble as in `Member.trouble`; else a shard whose work is silent, or raised and is retried."""
        return self.consumer.trouble

    async def run(
        self,
        *,
        drain_timeout: float = STOP_DRAIN_S,
        handle_signals: bool = True,
        until_done: bool = False,
        retry: bool = False,
    ) -> None:
        """Work until a signal, `stop` or cancellation; inside or outside of the block.

        SIGTERM and SIGINT end it in order, unless the program handles them: `shard.stopping` is set, work is cancelled
        (after `drain_timeout` if it reads that), progress is committed, and the group is left. A second signal cancels
        at once. This returns at most 2.5 s after `drain_timeout`, even if the work ignores its cancellation.

        Args:
            drain_timeout: Time for work that reads `shard.stopping`, after a signal.
            handle_signals: Whether SIGTERM and SIGINT are handled here.
            until_done: Also stop when the work on all held shards has returned; see `wait_done`.
            retry: When `work` raises, call it again for that shard after a pause from 1 to 30 s, while the others
                continue. In a group with a quarantine, each third consecutive failure is reported: the pool leaves, and
                joins again.
        """
        self._retries = {} if retry else None
        with self._only_run(drain_timeout):
            async with self._own_block_for_run():
                finishing = asyncio.ensure_future(self._stop_when_done()) if until_done else None
                try:
                    await self._run_until_stopped(handle_signals, max(drain_timeout, self._drain_s))
                finally:
                    if finishing is not None:
                        finishing.cancel()

    async def _stop_when_done(self) -> None:
        with suppress(CoordinatorError):  # The run itself raises the error that ended the membership.
            await self.wait_done()
            if not self._stops.in_order.is_set():  # A second request would make the current stop immediate.
                self.stop()

    async def wait_done(self) -> None:
        """Return when this process has its (perhaps empty) assignment and the work on all its shards has returned.

        Raises:
            MembershipLost: The pool was closed during the wait.
            RuntimeError: The block was not entered.
        """
        await self._until_entered()
        await self.consumer.wait_assigned()
        while self.consumer.assignment is None or not all(map(self._has_returned, self.shards)):
            await self._changed.wait()
            await self.consumer.wait_assigned()

    def _has_returned(self, place: TopicPartition) -> bool:
        """Return whether the work on a shard has ended by itself."""
        task, shard = self._tasks.get(place), self._shards.get(place)
        return task is not None and task.done() and shard is not None and shard._cancelled_at is None

    def _describe_work(self) -> str:
        shards = [self._shards[place] for place, task in self._tasks.items() if not task.done()]
        names = ", ".join(map(str, shards[:_SHOWN])) + (f" and {len(shards) - _SHOWN} more" if shards[_SHOWN:] else "")
        since = min((shard._cancelled_at for shard in shards if shard._cancelled_at is not None), default=None)
        return f"the work of {names}{cancelled_for(since)}" if shards else self.consumer._holding.at_work()

    # --- closing ------------------------------------------------------------------------------

    def _closed(self) -> None:
        self._notify()

    # --- callbacks of the consumer ------------------------------------------------------------

    def _start_work(self, added: Partitions, held: Partitions) -> None:
        for place in added:
            self._work_on(place)
        self._promote(held)
        self._notify()

    def _promote(self, places: Partitions) -> None:
        """Notify the work of shards whose active copy this process now has."""
        for place in places:
            if place in self._shards and self.consumer._topic_role.is_active(place):
                self._shards[place].promoted.set()

    async def _stop_work(self, removed: Partitions) -> None:
        for place in removed:
            self._shards[place]._stopping.set()
            self.consumer._watched.pop(place, None)  # It ends, and is not started again.
        self._cancel([place for place in removed if not self._shards[place]._is_watched])
        limit_s = self._drain_s if self.consumer.is_open else math.inf
        await self.consumer._deadline.wait([self._tasks[place] for place in removed], Step.WORK, limit_s)
        await self._abandon_work(removed)

    async def _abandon_work(self, removed: Partitions) -> None:
        held = [place for place in removed if place in self._tasks]
        self._cancel(held)
        if held:
            await asyncio.wait([self._tasks[place] for place in held])
        for place in held:
            self._tasks.pop(place, None)
            self._shards.pop(place, None)
        self._notify()

    async def _lose_work(self, removed: Partitions) -> None:
        """Cancel the work of lost shards; a pool without progress joins again after that work has ended."""
        await self._abandon_work(removed)
        self.consumer._join_again_if_released()

    def _cancel(self, places: Iterable[TopicPartition]) -> None:
        """Cancel once: a second cancellation would interrupt the cleanup of the work."""
        for place in places:
            if self._shards[place]._cancelled_at is None:
                self._shards[place]._end()
                self.consumer._watched.pop(place, None)
                self._tasks[place].cancel()

    def _work_on(self, place: TopicPartition, former: asyncio.Task[None] | None = None) -> None:
        shard = self._shards[place] = Shard(self.consumer, place)
        self._promote((place,))
        self._tasks[place] = asyncio.create_task(self._run(shard, place, former), name=str(shard))

    def _restart(self, place: TopicPartition) -> None:
        """Cancel work that makes no progress, and start it again: usually one of its calls hangs."""
        if not (shard := self._shards[place]).is_held:
            return  # The task is about to be cancelled: do not replace it by one that never runs.
        interval_s = self.consumer._options.max_processing_interval
        _log.warning("the work of %s is cancelled and started again: no progress for %g s", shard, interval_s)
        self._cancel([place])
        self._work_on(place, self._tasks[place])

    async def _run(self, shard: Shard, place: TopicPartition, former: asyncio.Task[None] | None) -> None:
        """Work on a shard after its former work has ended; with `retry`, until it returns."""
        if former is not None:
            await until_ended(former)
        retry = None
        if self._retries is not None:
            new = WorkRetry(self.consumer._jitter, self.consumer._stats.now_ms)
            retry = self._retries.setdefault(place, new)
        try:
            while not shard._stopping.is_set():
                if retry is not None and retry.pause_s:
                    await self._pause(shard, retry)
                elif not await self._try(shard, place, retry):
                    return
        finally:
            self._notify()

    async def _pause(self, shard: Shard, retry: WorkRetry) -> None:
        shard._rests = True
        self._notify()
        with suppress(TimeoutError):
            async with asyncio.timeout(retry.pause_s):
                await shard._stopping.wait()
        shard._rests = False

    async def _try(self, shard: Shard, place: TopicPartition, retry: WorkRetry | None) -> bool:
        """Call the work; return whether it raised and must be retried."""
        self.consumer._watch_shard(place)
        if retry is not None:
            retry.begin()
        try:
            await run_work(self._work, shard)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if (failure := await self._failure_in(shard, error)) is None:
                return False
            # A loss of another membership does not concern this shard.
            unit = "" if without_losses(failure) is None else str(shard)
            if retry is None or not isinstance(failure, Exception):
                self.consumer._fail_in_order(failure, unit)
                return False
            retry.fail(failure)
            _log.error("the work of %s raised; it is tried again in %.1f s", shard, retry.pause_s, exc_info=failure)
            if unit and retry.failures % _TRIES_OF_A_FALL == 0:
                await self._report(shard, unit, failure)
            return True
        finally:
            if self._shards.get(place) is shard:
                self.consumer._watched.pop(place, None)
        return False

    async def _failure_in(self, shard: Shard, error: BaseException) -> BaseException | None:
        """Return the part of an error that the end of its shard does not explain: a commit may be rejected before work
        is cancelled.
        """
        rest = without_losses(error)
        if rest is error:
            return error
        settled = asyncio.ensure_future(self.consumer._until_settled())
        try:
            await first_of(settled, shard._stopping)
        finally:
            settled.cancel()
        return error if shard.is_held and not shard._stopping.is_set() else rest

    async def _report(self, shard: Shard, unit: str, failure: Exception) -> None:
        """Report a failure to a group with a quarantine: this member leaves with it, and joins again at once."""
        if await self.consumer._is_quarantining() and not shard._stopping.is_set():
            shard._end()
            self.consumer._begin_step_aside(f"its work on {unit} raised {failure!r}", unit)
            self.consumer.come_back()

    def _troubles(self) -> list[str]:
        """List the troubles of the work on shards, for the pool's trouble and its metric."""
        silent = [f"the work of {topic}/{number} makes no progress" for topic, number in self.consumer._silent.copy()]
        retries = {} if self._retries is None else self._retries.copy()
        return silent + [
            f"the work of {place.topic}/{place.partition} raised {failure!r}, and is tried again"
            for place, retry in retries.items()
            if place in self._shards and (failure := retry.failure) is not None
        ]

    def _notify(self) -> None:
        current = asyncio.current_task()
        if all(task.done() or task is current or self._shards[place]._rests for place, task in self._tasks.items()):
            self.consumer._rest()
        self._changed.set()
        self._changed.clear()
