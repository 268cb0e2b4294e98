"""A member that shares the partitions of topics: its assignment, progress and subscription."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Self

from rota.client.callbacks import Listeners, call, inside, notify, notify_lost, notify_revoked
from rota.client.calls import Caller
from rota.client.commits import check_metadata, check_offset, place_of
from rota.client.consumer_protocol import Partitions, TopicRole
from rota.client.context import ClientContext
from rota.client.errors import (
    CoordinatorError,
    CoordinatorUnreachable,
    InvalidRequest,
    MembershipLost,
    Unavailable,
    losses_are_expected,
)
from rota.client.events import Assigned
from rota.client.member import Member
from rota.client.options import ConsumerSettings, to_ms
from rota.client.stop_deadline import Step
from rota.client.topic_lookout import TopicLookout
from rota.client.topics import RegisteredTopics, Topics, TopicSelection, TopicsWatch
from rota.core.assignors import TopicPartition
from rota.core.membership import MembershipSettings
from rota.core.membership import events as core
from rota.core.membership.backoff import Backoff
from rota.core.membership.deadline import ProcessingWatchdog
from rota.protocol.defaults import BACKOFF_CAP_MS, BACKOFF_FIRST_MS, WARN_AFTER_MS
from rota.protocol.messages import DescribeGroup, DescribeReply, OffsetToCommit, TopicPartitions

_log = logging.getLogger(__name__)

Committed = Callable[[Sequence[OffsetToCommit], CoordinatorError | None], Awaitable[None] | None]
"""A plain or async function that is called with the outcome of a commit in the background."""


_Notice = tuple[tuple[OffsetToCommit, ...], asyncio.Future[None], Committed | None]


class Consumer(Member[Partitions]):
    """A `Member` with a share of the partitions of topics.

    `commit` an offset at once, or `store` it: the consumer commits stored offsets every `auto_commit_interval`, and
    after `on_revoked` when partitions are revoked or the consumer is closed.
    """

    _kind = "consumer"

    def __init__(
        self,
        context: ClientContext,
        settings: MembershipSettings,
        *,
        role: TopicRole,
        selection: TopicSelection,
        registered: RegisteredTopics,
        listeners: Listeners[Partitions],
        options: ConsumerSettings,
        watch: TopicsWatch | None = None,
    ) -> None:
        """`registered` lists the registered topics; `watch` notices relevant changes of them."""
        own_listeners: Listeners[Partitions] = Listeners(self._start, self._stop, self._abandon)
        super().__init__(context, settings, role=role, listeners=own_listeners, leave_on_close=options.leave_on_close)
        self._topic_role = role
        self._user = listeners
        self._options = options
        self._stored: dict[TopicPartition, OffsetToCommit] = {}
        self._stats.stored = self._stored
        self._latest: dict[TopicPartition, asyncio.Future[None]] = {}
        """The last queued or sent commit of each partition."""
        self._notices: deque[_Notice] = deque()
        """Commits of `commit_soon` whose outcome is not yet published, in order."""
        self._watchdog = ProcessingWatchdog(to_ms(options.max_processing_interval))
        self._watched: dict[TopicPartition, ProcessingWatchdog] = {}
        """The shards that a pool works on now, each with its own watchdog."""
        self._silent: dict[TopicPartition, None] = {}
        """Shards that have made no progress for too long."""
        self._on_silence: Callable[[TopicPartition], None] | None = None
        self._withdrew = False
        self._lookout = TopicLookout(
            self._machine,
            self._driver,
            self._holding,
            self._caller,
            role,
            selection,
            registered,
            watch=watch,
            refresh_s=options.topics_refresh_interval,
            debounce_s=options.topics_debounce,
            jitter=self._jitter,
        )

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        for chore in self._lookout.chores():
            self._in_background(chore)
        if self._options.auto_commit_interval is not None:
            self._in_background(self._auto_commit(self._options.auto_commit_interval))
        if self._options.max_processing_interval is not None:
            self._in_background(self._watch_progress())
        return self

    async def _before_joining(self) -> None:
        """Resolve a pattern, retrying until a coordinator answers."""
        caller = Caller(self._context.transport, retry_timeout=0, jitter=self._jitter)
        registered, backoff = RegisteredTopics(caller, self.namespace), Backoff(BACKOFF_FIRST_MS, BACKOFF_CAP_MS)
        began_ms, troubles = self._now_ms(), self._context.troubles
        while True:
            try:
                await self._lookout.look_at_first(registered)
            except Unavailable as error:
                if self._now_ms() - began_ms >= WARN_AFTER_MS:
                    troubles.publish(self, str(error), began_ms)
                await asyncio.sleep(backoff.next_ms(self._jitter()) / 1000)
            else:
                return troubles.over(self)

    @property
    def trouble(self) -> str:
        """The trouble as in `Member.trouble`; else topics that are named but not registered, or the trouble of a pool's
        shard.
        """
        return super().trouble or self._lookout.missing or next(iter(self._stats.troubles_of_work()), "")

    def owns(self, place: TopicPartition) -> bool:
        """Return whether this member owns a partition now, by the clock; one in revocation is still owned. Any thread
        may ask.
        """
        owned = self._holding.owned
        return owned is not None and place in owned and self._driver.holds()

    async def assignments(self) -> AsyncIterator[Assigned[Partitions]]:
        """Yield the current assignment and each later one. Requesting the next one counts as progress."""
        async for event in self.events():
            if isinstance(event, Assigned):
                yield event
                self.progress()

    # --- progress -----------------------------------------------------------------------------

    def progress(self) -> None:
        """Report that work continues, as `store` and `commit` do. A member that released its share joins its group
        again.
        """
        self._progress()

    def _progress(self, places: Iterable[TopicPartition] | None = None) -> None:
        """Note progress of these partitions, or of all of them."""
        now_ms = self._now_ms()
        self._watchdog.progressed(now_ms)
        for place in tuple(self._watched if places is None else places):
            self._silent.pop(place, None)
            if place in self._watched:
                self._watched[place].progressed(now_ms)
        if self._holding.owned is None:
            self._watchdog.rest()
        if self._stepping is None or self._stepping.done():
            self.come_back()

    def _rest(self) -> None:
        """Report that there is no work now: no progress is expected before the next `progress` or `store`."""
        self._watchdog.rest()

    def _join_again_if_released(self) -> None:
        """Join again if this member released its share for lack of progress."""
        if self._withdrew:
            self._withdrew = False
            self.come_back()

    def store(
        self, topic: str, partition: int, offset: int, metadata: str = "", retention_time: float | None = None
    ) -> None:
        """Store that everything before `offset` is done. It is committed when the partition is revoked, at the latest.

        `retention_time` seconds after that commit the offset may expire; without it, the server's retention applies.

        Raises:
            MembershipLost: This member does not hold the partition (any more).
            InvalidRequest: A coordinator never accepts the offset or its metadata; it is not stored.
        """
        self._check_entered()
        self._progress((TopicPartition(topic, partition),))
        stored = OffsetToCommit(topic, partition, offset, metadata=metadata, retention_time_ms=to_ms(retention_time))
        check_offset(stored)
        check_metadata(stored)
        if not self.owns(TopicPartition(topic, partition)):
            raise MembershipLost(f"this member does not hold {topic}/{partition}")
        if TopicPartition(topic, partition) in (self._holding.stopped or ()):
            # If accepted, it would never be committed, or after another member's progress.
            raise MembershipLost(f"{topic}/{partition} was revoked: its last commits are under way")
        self._stats.progress_stored(place_of(stored))
        self._stored[TopicPartition(topic, partition)] = stored

    async def commit(self, offsets: Iterable[OffsetToCommit] | None = None) -> None:
        """Commit as `Member.commit` does; without offsets, everything that is stored."""
        await self._until_entered()
        items = tuple(self._stored.values() if offsets is None else offsets)
        self._progress(map(place_of, items))
        await asyncio.shield(self._commit_in_turn(items))

    def commit_soon(self, offsets: Iterable[OffsetToCommit] | None = None, then: Committed | None = None) -> None:
        """Commit in the background, in the order of the calls, before partitions are revoked and before leaving.

        `then` is called with the outcome, also in that order; without it, a failure is logged.

        Raises:
            InvalidRequest: A coordinator never accepts one of the offsets; no offset is committed.
        """
        self._check_entered()
        items = tuple(self._stored.values() if offsets is None else offsets)
        outcome = self._commit_in_turn(items)
        self._notices.append((items, outcome, then))
        if len(self._notices) == 1:
            self._notifying = self._in_background(self._notify_of_commits())

    def _commit_in_turn(self, items: tuple[OffsetToCommit, ...]) -> asyncio.Future[None]:
        """Queue a commit at the place of this call. It includes offsets that were stored earlier for these partitions:
        the next auto-commit would otherwise reset progress to them.
        """
        outcome, era = self._commits.add(items), self._holding.era
        replaced = {place: stored for item in items if (stored := self._stored.pop(place := place_of(item), None))}
        for place in map(place_of, items):
            self._latest[place] = outcome

        def keep_if_failed(done: asyncio.Future[None]) -> None:
            error = None if done.cancelled() else done.exception()
            for item in [item for item in items if self._latest.get(place_of(item)) is done]:
                former = replaced.get(place := place_of(item))
                del self._latest[place]
                is_poison = former is item and isinstance(error, InvalidRequest)
                if error is not None and former is not None and not is_poison and era == self._holding.era:
                    self._stored.setdefault(place, _kept(former, item, error))

        outcome.add_done_callback(keep_if_failed)
        return outcome

    async def committed(self) -> dict[TopicPartition, int]:
        """Return the group's progress in the partitions of this member; 0 if no offset was committed yet."""
        await self._until_entered()
        held = self._holding.owned or ()
        by_topic: dict[str, list[int]] = {}
        for topic, partition in held:
            by_topic.setdefault(topic, []).append(partition)
        wanted = [TopicPartitions(topic, tuple(numbers)) for topic, numbers in by_topic.items()]
        found = await self.fetch_offsets(wanted) if wanted else ()
        return {TopicPartition(each.topic, each.partition): max(each.offset, 0) for each in found}

    async def _notify_of_commits(self) -> None:
        """Publish outcomes in the order of the commits. If the program's function raises, the member fails, and the
        rest continues.
        """
        with inside(id(self)):
            while self._notices:
                try:
                    await self._notify_of_commit(*self._notices[0])
                except Exception as error:
                    self._fail(error)
                self._notices.popleft()

    async def _notify_of_commit(
        self, items: tuple[OffsetToCommit, ...], outcome: asyncio.Future[None], then: Committed | None
    ) -> None:
        await asyncio.wait((outcome,))
        error = outcome.exception()
        if error is not None and not isinstance(error, CoordinatorError):
            raise error
        if then is not None:
            with losses_are_expected("the function for a commit's outcome", lambda: self.assignment is None):
                await call(then, items, error)
        elif error is not None:
            _log.warning("group %s: not committed: %s", self.group_id, error)

    async def _auto_commit(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            if self._stored and self.assignment is not None:
                # A commit is no progress; only the program's `store` is.
                self._commit_stored(tuple(self._stored))

    def _commit_stored(self, partitions: Sequence[TopicPartition]) -> None:
        """Commit each partition separately in the background: a rejected one must not delay the others."""
        for item in [self._stored[place] for place in partitions if place in self._stored]:
            self._commit_in_turn((item,)).add_done_callback(partial(self._log_outcome, item))

    def _log_outcome(self, item: OffsetToCommit, outcome: asyncio.Future[None]) -> None:
        error = None if outcome.cancelled() else outcome.exception()
        if isinstance(error, InvalidRequest):
            _log.error("group %s: the progress of %s is dropped: %s", self.group_id, place_of(item), error)
        elif error is not None:
            _log.warning("group %s: progress was not committed: %s", self.group_id, error)

    async def _before_leaving(self, step: Step) -> None:
        await self._commits.flush(self._deadline.left_s(Step.COMMIT))
        self._commits.drop()
        while self._notices and not self._notifying.done() and await self._deadline.wait((self._notifying,), step):
            continue  # The program's function for outcomes may commit again.

    # --- changes of the share -----------------------------------------------------------------

    async def _start(self, added: Partitions, held: Partitions, *, deadline: float | None) -> None:
        if held:
            self._watchdog.progressed(self._now_ms())
        else:
            self._watchdog.rest()
        await notify(self._user.on_assigned, added, held, deadline=deadline)

    async def _stop(self, removed: Partitions, *, deadline: float | None) -> None:
        await notify_revoked(self._user, removed, deadline=deadline)
        self._commit_stored(removed)  # These are sent before the partitions are revoked: see `Holding`.
        self._forget(removed)

    async def _abandon(self, removed: Partitions, *, deadline: float | None) -> None:
        self._forget(removed)
        self._watchdog.rest()
        await notify_lost(self._user, removed, self._holding.unnotified(removed), deadline=deadline)

    def _forget(self, partitions: Partitions) -> None:
        """Drop all offsets of these partitions, also those that a failing commit would store again: other members
        continue there.
        """
        for partition in partitions:
            self._stored.pop(partition, None)
            self._latest.pop(partition, None)
            self._silent.pop(partition, None)

    async def _watch_progress(self) -> None:
        """Release the share if there is no progress although heartbeats continue: another member may be
        able to work.
        """
        interval_s = self._options.max_processing_interval or 0.0
        while True:
            now_ms = self._now_ms()
            if self._holding.is_leaving:
                self._watchdog.rest()
            elif self._watchdog.is_over(now_ms):
                self._watchdog.rest()
                self._withdrew = True
                self._withdraw(f"no progress for {interval_s:g} s")
            else:
                self._look_for_silent_shards(now_ms)
            watchdogs = (self._watchdog, *self._watched.values())
            due_at_ms = min((at_ms for each in watchdogs if (at_ms := each.due_at_ms) is not None), default=None)
            await asyncio.sleep(interval_s if due_at_ms is None else max(due_at_ms - now_ms, 1) / 1000)

    def _watch_shard(self, place: TopicPartition) -> None:
        """Watch a shard on which a pool has started work: from now on it must make progress."""
        watchdog, now_ms = ProcessingWatchdog(to_ms(self._options.max_processing_interval)), self._now_ms()
        self._watched[place] = watchdog
        watchdog.progressed(now_ms)
        if self._watchdog.due_at_ms is None:
            self._watchdog.progressed(now_ms)

    def _look_for_silent_shards(self, now_ms: int) -> None:
        """Report shards without progress to the pool, which restarts them, if other shards make progress."""
        for place in [place for place, watchdog in self._watched.items() if watchdog.is_over(now_ms)]:
            del self._watched[place]
            self._silent[place] = None
            assert self._on_silence is not None
            self._on_silence(place)

    async def _is_quarantining(self) -> bool:
        """Return whether the group has a quarantine, so that failing work must be reported."""
        with suppress(CoordinatorError):
            described = await self._caller.ask(DescribeGroup(self.namespace, self.group_id), DescribeReply)
            return self._leaves and described.quarantine_after > 0
        return False

    # --- subscription -------------------------------------------------------------------------

    @property
    def subscription(self) -> tuple[str, ...]:
        """The topics that this member subscribes to; for a pattern, those that match now."""
        return self._topic_role.topics

    async def subscribe(self, topics: Topics) -> None:
        """Change the subscription. Topics that it no longer contains are revoked, and the group rebalances.

        The source of partition counts stays the same: a mapping's counts are added to the initial ones.
        """
        await self._lookout.subscribe(topics)

    def _on_event(self, event: core.Event) -> None:
        super()._on_event(event)
        self._lookout.on_event(event)


def _kept(former: OffsetToCommit, item: OffsetToCommit, error: BaseException) -> OffsetToCommit:
    """Return the offset to store after a commit of `item` failed: never lower than `item`, which may have been
    committed.
    """
    may_be_made = isinstance(error, CoordinatorUnreachable) and error.was_sent
    return item if may_be_made and item.offset > former.offset else former
