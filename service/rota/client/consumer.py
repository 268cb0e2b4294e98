"""A member that shares the partitions of topics: what it holds, its progress, and what it subscribes to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from rota.assignors import TopicPartition
from rota.client.callbacks import Listeners, call, notify
from rota.client.consumer_protocol import Dealt, Partitions, TopicRole, read_group
from rota.client.errors import CoordinatorError, MembershipLost
from rota.client.events import Assigned
from rota.client.member import Member
from rota.client.pulse import Pulse
from rota.client.topics import Topics, TopicSelection
from rota.client.topics_watch import TopicsWatch
from rota.client.transports.port import Transport
from rota.membership import MembershipSettings, State
from rota.membership import events as core
from rota.membership.watchdog import ProcessingWatchdog
from rota.protocol.messages import DescribeGroup, DescribeReply, OffsetToCommit, TopicPartitions
from rota.types import TopicFacts
from rota.types.registry import SERVER_PREFIX

_log = logging.getLogger(__name__)

Committed = Callable[[Sequence[OffsetToCommit], CoordinatorError | None], Awaitable[None] | None]
"""Told how a commit in the background went; plain or async."""


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """How a consumer keeps its progress and its subscription. Times are milliseconds."""

    auto_commit_ms: int | None = None
    max_processing_interval_ms: int | None = None
    topics_refresh_ms: int = 10_000


class Consumer(Member[Partitions]):
    """A `Member` whose share is partitions of topics.

    Two ways of progress: `commit` what is done, at once; or `store` it and leave the rest to the consumer, which
    commits what is stored every `auto_commit_ms` and when partitions are revoked, after `on_revoked` has returned.
    """

    def __init__(
        self,
        transport: Transport,
        settings: MembershipSettings,
        *,
        role: TopicRole,
        selection: TopicSelection,
        registered: Callable[[], Awaitable[Iterable[str]]],
        listeners: Listeners[Partitions],
        options: ConsumerSettings,
        watch: TopicsWatch | None = None,
        leave_on_close: bool | None = None,
        pulse: Pulse | None = None,
    ) -> None:
        """`registered` asks for the topics that there are; `watch` tells when these are others, if they matter."""
        own_listeners: Listeners[Partitions] = Listeners(self._start, self._stop, self._abandon)
        super().__init__(
            transport, settings, role=role, listeners=own_listeners, leave_on_close=leave_on_close, pulse=pulse
        )
        self._topic_role = role
        self._selection = selection
        self._registered = registered
        self._user = listeners
        self._options = options
        self._stored: dict[TopicPartition, OffsetToCommit] = {}
        self._watchdog = ProcessingWatchdog(options.max_processing_interval_ms)
        self._watch = watch
        self._look_now = asyncio.Event()
        self._has_looked = False
        """Whether what was last heard of topics has been dealt, or will be."""

    async def __aenter__(self) -> Self:
        if self._selection.pattern is not None:
            self._topic_role.topics = await self._select()
            self._machine.say(self._topic_role.protocols(None, -1))
        await super().__aenter__()
        if self._selection.pattern is not None or not isinstance(self._topic_role.counts, Mapping):
            self._in_background(self._refresh_topics())
        if self._watch is not None:
            self._in_background(self._watch_topics(self._watch))
        if self._topic_role.is_cooperative:
            self._in_background(self._look_for_rest())
        if self._options.auto_commit_ms is not None:
            self._in_background(self._commit_now_and_then(self._options.auto_commit_ms / 1000))
        if self._options.max_processing_interval_ms is not None:
            self._in_background(self._watch_progress())
        return self

    def owns(self, place: TopicPartition) -> bool:
        """Whether a partition is this member's now, by the clock; one that is being revoked still is."""
        return self._owned is not None and place in self._owned and self._machine.holds(self._now_ms())

    async def assignments(self) -> AsyncIterator[Assigned[Partitions]]:
        """What this member holds, beginning with now, each time that it is another. Asking for the next is progress."""
        async for event in self.events():
            if isinstance(event, Assigned):
                yield event
                self.progress()

    # --- progress -----------------------------------------------------------------------------

    def progress(self) -> None:
        """Say that work goes on; so do `store` and `commit`. A member that fell silent joins its group again."""
        self._watchdog.progressed(self._now_ms())
        if self._owned is None:
            self._watchdog.rest()
        self.come_back()

    def store(self, topic: str, partition: int, offset: int, metadata: str = "") -> None:
        """Note that everything before `offset` is done, for the next commit.

        Raises:
            MembershipLost: This member does not hold the partition (any more).
        """
        self.progress()
        if not self.owns(TopicPartition(topic, partition)):
            raise MembershipLost(f"this member does not hold {topic}/{partition}")
        stored = OffsetToCommit(topic, partition, offset, metadata=metadata)
        self._stored[TopicPartition(topic, partition)] = stored

    async def commit(self, offsets: Iterable[OffsetToCommit] | None = None) -> None:
        """As `Member.commit`; without offsets, everything that is stored."""
        self.progress()
        items = tuple(self._stored.values() if offsets is None else offsets)
        if items:
            await super().commit(items)
        for item in items:
            if self._stored.get(place := TopicPartition(item.topic, item.partition)) == item:
                del self._stored[place]

    def commit_soon(self, offsets: Iterable[OffsetToCommit] | None = None, then: Committed | None = None) -> None:
        """Commit in the background. `then` is told how it went; without it, that it failed is only logged."""
        items = tuple(self._stored.values() if offsets is None else offsets)
        self._tasks.create_task(self._commit_and_tell(items, then))

    async def committed(self) -> dict[TopicPartition, int]:
        """The group's progress in what this member holds; 0 where nothing was committed yet."""
        held = self._owned or ()
        by_topic: dict[str, list[int]] = {}
        for topic, partition in held:
            by_topic.setdefault(topic, []).append(partition)
        wanted = [TopicPartitions(topic, tuple(numbers)) for topic, numbers in by_topic.items()]
        found = await self.fetch_offsets(wanted) if wanted else ()
        return {TopicPartition(each.topic, each.partition): max(each.offset, 0) for each in found}

    async def _commit_and_tell(self, items: tuple[OffsetToCommit, ...], then: Committed | None) -> None:
        error: CoordinatorError | None = None
        try:
            await self.commit(items)
        except CoordinatorError as failure:
            error = failure
        if then is not None:
            await call(then, items, error)
        elif error is not None:
            _log.warning("group %s: not committed: %s", self.group_id, error)

    async def _commit_now_and_then(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            if self._stored and self.assignment is not None:
                # Not progress by itself: only that somebody has stored something was.
                await self._commit_stored(tuple(self._stored))

    async def _commit_stored(self, partitions: Sequence[TopicPartition]) -> None:
        items = [self._stored[place] for place in partitions if place in self._stored]
        if not items:
            return
        try:
            await Member.commit(self, items)
        except CoordinatorError as error:
            _log.warning("group %s: progress was not committed: %s", self.group_id, error)
            return
        for item in items:
            if self._stored.get(place := TopicPartition(item.topic, item.partition)) == item:
                del self._stored[place]

    # --- what is held changes -----------------------------------------------------------------

    async def _start(self, added: Partitions, held: Partitions, *, deadline: float | None) -> None:
        if held:
            self._watchdog.progressed(self._now_ms())
        else:
            self._watchdog.rest()
        await notify(self._user.on_assigned, added, held, deadline=deadline)

    async def _stop(self, removed: Partitions, *, deadline: float | None) -> None:
        await notify(self._user.on_revoked, removed, deadline=deadline)
        if self._options.auto_commit_ms is not None:
            await self._commit_stored(removed)
        self._forget(removed)

    async def _abandon(self, removed: Partitions, *, deadline: float | None) -> None:
        self._forget(removed)
        self._watchdog.rest()
        await notify(self._user.on_lost, removed, deadline=deadline)

    def _forget(self, partitions: Partitions) -> None:
        for partition in partitions:
            self._stored.pop(partition, None)

    async def _watch_progress(self) -> None:
        """Give the share up when nothing gets done, though heartbeats go on: somebody else may be able to."""
        while True:
            due_at_ms, now_ms = self._watchdog.due_at_ms, self._now_ms()
            if self._watchdog.is_over(now_ms):
                self._watchdog.rest()
                self.withdraw(f"no progress for {self._options.max_processing_interval_ms} ms")
            waits_ms = (self._options.max_processing_interval_ms or 0) if due_at_ms is None else due_at_ms - now_ms
            await asyncio.sleep(max(waits_ms, 1) / 1000)

    # --- subscription -------------------------------------------------------------------------

    @property
    def subscription(self) -> tuple[str, ...]:
        """The topics that this member asks for; for a pattern, those that match now."""
        return self._topic_role.topics

    async def subscribe(self, topics: Topics) -> None:
        """Ask for other topics from now on. What is not asked for any more is revoked, and the group rebalances.

        Partition counts come from where they came before: a mapping's counts are added to those given at first.
        """
        self._selection = TopicSelection.of(topics)
        if isinstance(topics, Mapping) and isinstance(self._topic_role.counts, Mapping):
            self._topic_role.counts = {**self._topic_role.counts, **topics}
        self._take_topics(await self._select())

    async def _select(self) -> tuple[str, ...]:
        registered = () if self._selection.pattern is None else await self._registered()
        return self._selection.among(registered)

    def _take_topics(self, topics: tuple[str, ...]) -> None:
        if topics != self._topic_role.topics:
            self._topic_role.topics = topics
            if self._owned is None:
                self._machine.say(self._topic_role.protocols(None, -1))
            self.rejoin("its subscription changed")

    async def _refresh_topics(self) -> None:
        """Look when there is news, and now and then where nobody would tell."""
        while True:
            if not await self._is_told_to_look() and self._has_looked and self._is_watching():
                continue
            self._has_looked = False
            try:
                self._take_topics(await self._select())
                self._has_looked = await self._follow_topics()
            except Exception as error:
                # The user's own counts may raise, too. Next time, then.
                _log.warning("group %s: its topics could not be looked up: %r", self.group_id, error)

    async def _is_told_to_look(self) -> bool:
        """False after a while; not for all members at the same moment."""
        try:
            async with asyncio.timeout(self._options.topics_refresh_ms * (0.75 + 0.5 * self._jitter()) / 1000):
                await self._look_now.wait()
        except TimeoutError:
            return False
        self._look_now.clear()
        return True

    async def _watch_topics(self, watch: TopicsWatch) -> None:
        """While this member leads: what changes for the others, they learn by the rebalance."""
        while not self._machine.is_final:
            if self._deals_topics():
                async with asyncio.TaskGroup() as tasks:
                    watching = tasks.create_task(watch.follow(self._look_now.set))
                    while self._deals_topics():
                        await self._changed.wait()
                    watching.cancel()
            else:
                await self._changed.wait()

    def _is_watching(self) -> bool:
        return self._watch is not None and self._watch.is_live and self._deals_topics()

    def _deals_topics(self) -> bool:
        """Whether the group waits for this member to notice what becomes of topics."""
        if self._machine.is_final or not self.is_leader:
            return False
        return self._selection.pattern is not None or not self._machine.protocol_name.startswith(SERVER_PREFIX)

    def _on_event(self, event: core.Event) -> None:
        super()._on_event(event)
        match event:
            case core.RebalanceStarted() if self._selection.pattern is not None:
                # It may be for a topic that matches, and then all should ask for it at once.
                self._look_now.set()
            case core.Assigned(is_leader=True) if not self._has_looked:
                # Word of a change came while the group was between two generations.
                self._look_now.set()

    async def _look_for_rest(self) -> None:
        """As the leader, call for what was withheld and not given up, as its claimant has started anew meanwhile.

        Once in a generation, when whoever has something to give up has had its time.
        """
        looked_in, seen = -1, -1
        while True:
            await asyncio.sleep(self._machine.settings.session_timeout_ms / 1000)
            had_time, seen = self.generation_id == seen, self.generation_id
            if not had_time or seen == looked_in or not self.is_leader or self.assignment is None:
                continue
            try:
                rest = await self._count_rest()
            except Exception as error:
                _log.warning("group %s: its assignment could not be looked up: %r", self.group_id, error)
                continue
            looked_in = seen if rest is not None else -1
            if rest and self.generation_id == seen:
                self.rejoin(f"{rest} partitions were given to nobody")

    async def _count_rest(self) -> int | None:
        """How many partitions of the group's topics nobody was given in this generation; None if that is over."""
        dealt = self._topic_role.dealt
        if dealt is not None and dealt.generation.generation_id == self.generation_id:
            return _partitions(dealt.topics) - sum(map(len, dealt.shares.values()))
        request = DescribeGroup(self._machine.settings.namespace, self.group_id)
        group = await self._caller.ask(request, DescribeReply)
        if group.state != "Stable" or group.generation_id != self.generation_id:
            return None
        topics, given = read_group(group.members)
        return _partitions(await self._topic_role.count(topics)) - len(given)

    async def _follow_topics(self) -> bool:
        """As the leader, deal again when topics have changed: at once if that takes nothing from anybody.

        False where that has to wait for the generation that comes.
        """
        if self._machine.protocol_name.startswith(SERVER_PREFIX):
            return True
        dealt = self._dealt_now()
        if dealt is None:
            return False
        topics = await self._topic_role.count(sorted({*dealt.topics, *self._topic_role.topics}))
        if dealt.is_about(topics):
            return True
        again, encoded = await self._topic_role.again(dealt, topics)
        if dealt is not self._dealt_now():
            return False
        # Of cooperative members some may still be giving up what they were not dealt: they all have to be asked.
        at_once = not self._topic_role.is_cooperative and again.keeps_all_of(dealt)
        if again.shares == dealt.shares or (at_once and self._machine.resync(encoded)):
            self._topic_role.dealt = again
            self._wake.set()
        else:
            self.rejoin("the topics changed")
        return True

    def _dealt_now(self) -> Dealt | None:
        """What this member dealt, if the group works by that: not where it lost the lead, or the server deals."""
        dealt = self._topic_role.dealt
        is_current = dealt is not None and dealt.generation.protocol_name == self._machine.protocol_name
        is_settled = self._machine.state is State.STABLE and self.assignment is not None
        return dealt if is_current and is_settled and self.is_leader else None


def _partitions(topics: Mapping[str, TopicFacts]) -> int:
    return sum(facts.partitions for facts in topics.values())
