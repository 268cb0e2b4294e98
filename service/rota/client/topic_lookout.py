"""A consumer's subscription, and changes of its topics, which the leader notices and assigns."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from rota.client.calls import Caller
from rota.client.consumer_protocol import Partitions, Plan, TopicRole
from rota.client.driver import Driver
from rota.client.errors import CoordinatorError
from rota.client.holding import Holding
from rota.client.topics import MissingTopics, RegisteredTopics, TopicListing, Topics, TopicSelection, TopicsWatch
from rota.core.membership import Membership, State
from rota.core.membership import events as core
from rota.core.types import TopicFacts
from rota.core.types.registry import SERVER_PREFIX
from rota.core.types.topics import describe_changes
from rota.protocol.messages import DescribeGroup, DescribeReply
from rota.protocol.texts import TOPICS_CHANGED

AGAIN_S = 1.0
"""Pause after a failed comparison of topics."""
MISSING_SPREAD_S = 1.0
"""Members without partitions of a topic spread their listings of topics over this time."""
NET_ROUNDS = 3
"""Number of refresh intervals after which the leader compares without a known change: a watch may miss one, and a
static member that restarts with other topics starts no rebalance.
"""

_log = logging.getLogger(__name__)


class TopicLookout:
    """Keeps a member's subscription and the group's assignment consistent with the registered topics."""

    def __init__(
        self,
        machine: Membership,
        driver: Driver,
        holding: Holding[Partitions],
        caller: Caller,
        role: TopicRole,
        selection: TopicSelection,
        registered: RegisteredTopics,
        *,
        watch: TopicsWatch | None,
        refresh_s: float,
        debounce_s: float = 0.0,
        jitter: Callable[[], float],
    ) -> None:
        """`registered` lists the registered topics; `watch` notices relevant changes of them."""
        self._group_id = machine.settings.group_id
        self._machine = machine
        self._driver = driver
        self._holding = holding
        self._caller = caller
        self._role = role
        self._selection = selection
        self._registered = registered
        self._watch = watch
        self._interval_s = refresh_s
        self._debounce_s = debounce_s
        """Time for which changes of topics are collected, from the first one."""
        self._jitter = jitter
        self._look_now = asyncio.Event()
        self._has_looked = False
        """Whether the assignment matches the last listing of topics, or will."""
        self._rounds = 0
        """Number of refresh intervals without a comparison of topics."""
        self._missing = MissingTopics(self._group_id)
        self._check_missing = asyncio.Event()

    @property
    def missing(self) -> str:
        """The topics that this member names but are not registered, as text; empty without any."""
        return self._missing.text

    async def look_at_first(self, registered: RegisteredTopics) -> None:
        """Resolve a pattern to topics before the first join."""
        if self._selection.pattern is not None:
            self._role.topics = self._selection.among((await registered.list()).topics)
            self._machine.say(self._role.protocols(None, -1))

    def chores(self) -> Iterator[Coroutine[None, None, None]]:
        """Yield the background tasks, which run while the member lives."""
        yield self._refresh_topics()
        if self._watch is not None:
            yield self._watch_topics(self._watch)
        yield self._reassign_withheld()
        if self._role.counts_registered or any(name.startswith(SERVER_PREFIX) for name in self._role.strategies):
            yield self._report_missing()

    async def subscribe(self, topics: Topics) -> None:
        """Change the subscription: see `Consumer.subscribe`."""
        self._selection = TopicSelection.of(topics, self._selection.excepted)
        if isinstance(topics, Mapping) and isinstance(self._role.counts, Mapping):
            self._role.counts = {**self._role.counts, **topics}
        listing = None if self._selection.pattern is None else await self._registered.list()
        self._take(self._selection.among(listing.topics if listing is not None else ()), "its subscription changed")
        self._check_missing.set()

    def on_event(self, event: core.Event) -> None:
        """Check whether an event of the member requires a comparison."""
        if isinstance(event, core.Assigned) and self._lacks_topics():
            self._check_missing.set()
        match event:
            case core.RebalanceStarted() if self._selection.pattern is not None:
                # The rebalance may be for a new topic that matches; then all members should join with it at once.
                self._look_now.set()
            case core.Assigned(is_leader=True) if not self._has_looked or self._own_assignment() is None:
                # Topics changed between two generations, or perhaps while this leader was absent.
                self._look_now.set()

    def _take(self, topics: tuple[str, ...], reason: str) -> None:
        if topics != self._role.topics:
            self._role.topics = topics
            if self._holding.owned is None:
                self._machine.say(self._role.protocols(None, -1))
            self._driver.rejoin(reason)

    async def _refresh_topics(self) -> None:
        """Compare the assignment with the topics after changes, and periodically."""
        while True:
            is_notified = await self._is_notified()
            self._rounds += 1
            if not is_notified and self._has_looked and self._is_soon_enough():
                continue
            is_net, self._rounds, self._has_looked = self._has_looked and not is_notified, 0, False
            try:
                self._has_looked = await self._compare_topics(is_net=is_net)
            except Exception as error:
                # The user's own function for counts may raise; the next check retries.
                _log.warning("group %s: its topics could not be looked up: %r", self._group_id, error)

    def _is_soon_enough(self) -> bool:
        """Return whether a change will be noticed without a listing now, or no change is expected."""
        return (self._is_fixed() or self._is_watching()) and self._rounds < NET_ROUNDS

    async def _compare_topics(self, *, is_net: bool) -> bool:
        """Update the subscription and the assignment to one listing of the topics, newer than both."""
        plan = self._own_assignment()
        if plan is not None and is_net and await self._has_other_subscriptions(plan):
            self._driver.rejoin("a member restarted with another subscription")
            return False
        plan = plan or await self._read_assignment()
        listing = await self._list()
        if self._debounce_s and await self._has_changed(plan, listing):
            await self._let_changes_collect()
            plan = self._own_assignment() or await self._read_assignment()
            listing = await self._list()
        selected = self._selection.among(listing.topics if listing is not None else ())
        self._take(selected, f"{TOPICS_CHANGED}{self._changes(plan, selected, listing)}")
        is_in_line = await self._follow_topics(plan, listing)
        if listing is not None and self._watch is not None:
            self._watch.note(listing.version)
        return is_in_line

    def _changes(self, plan: Plan | None, selected: Sequence[str], listing: TopicListing | None) -> str:
        """Describe the topics that have changed, as the end of a reason."""
        if listing is None:
            return ""
        before = plan.topics if plan is not None else None
        if before is None:  # A member that does not assign knows only the names of topics.
            before = {name: listing.topics.get(name, TopicFacts(0)) for name in self._role.topics}
        changes = describe_changes(before, {name: listing.topics[name] for name in selected if name in listing.topics})
        return f": {changes}" if changes else ""

    async def _list(self) -> TopicListing | None:
        return await self._registered.list() if self._depends_on_registry() else None

    async def _has_changed(self, plan: Plan | None, listing: TopicListing | None) -> bool:
        """Return whether topics differ from those that this member subscribes to, or has assigned."""
        if self._selection.among(listing.topics if listing is not None else ()) != self._role.topics:
            return True
        if plan is None or plan.topics is None or not self._leads():
            return False
        return not plan.is_about(await self._role.count(plan.subscribed, listing))

    async def _let_changes_collect(self) -> None:
        """Wait for further changes, but end with a join phase, whose generation should include all known changes."""
        generation_id = self._machine.generation_id
        with suppress(TimeoutError):
            async with asyncio.timeout(self._debounce_s):
                while self._machine.state is State.STABLE and self._machine.generation_id == generation_id:
                    await self._driver.changed.wait()

    def _depends_on_registry(self) -> bool:
        """Return whether registered topics affect this member: by its pattern, or as the leader that counts them."""
        return self._selection.pattern is not None or (self._role.counts_registered and self._leads())

    async def _has_other_subscriptions(self, plan: Plan) -> bool:
        """Return whether a static member returned with another subscription than the one this leader assigned."""
        if not any(member.group_instance_id for member in plan.generation.members):
            return False
        read = await self._read_assignment()
        return read is not None and read.subscriptions() != plan.subscriptions()

    def _refresh_s(self) -> float:
        """The time until the next check: soon if the leader could not compare, because a rebalance may have been
        abandoned.
        """
        interval_s = self._interval_s
        return interval_s if self._has_looked or not self._leads() else min(interval_s, AGAIN_S)

    async def _is_notified(self) -> bool:
        """Wait for a notification; return False after a timeout that differs between members."""
        try:
            async with asyncio.timeout(self._refresh_s() * (0.75 + 0.5 * self._jitter())):
                await self._look_now.wait()
        except TimeoutError:
            return False
        self._look_now.clear()
        return True

    # --- topics that are not registered --------------------------------------------------------

    def _lacks_topics(self) -> bool:
        """Return whether this member has no partition of a topic that it names: others may have them all, or it has
        none.
        """
        current = self._holding.current
        given = {place.topic for place in current.share} if current is not None else set[str]()
        return self._selection.pattern is None and not given.issuperset(self._role.topics)

    async def _report_missing(self) -> None:
        """List the registered topics while a topic is missing, whether this member leads or not."""
        while True:
            await self._check_missing.wait()
            self._check_missing.clear()
            # The jitter spreads the members' listings.
            await asyncio.sleep(MISSING_SPREAD_S * self._jitter())
            while await self._are_topics_missing():
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._interval_s):
                        await self._check_missing.wait()
                self._check_missing.clear()

    async def _are_topics_missing(self) -> bool:
        is_counted_here = not self._role.counts_registered and not self._machine.protocol_name.startswith(SERVER_PREFIX)
        if self._selection.pattern is not None or is_counted_here:
            self._missing.update((), (), self._driver.now_ms() / 1000)
            return False
        try:
            registered = (await self._registered.list()).topics
        except CoordinatorError as error:
            _log.debug("group %s: the registered topics could not be listed: %s", self._group_id, error)
            return True
        self._missing.update(self._role.topics, registered, self._driver.now_ms() / 1000)
        return bool(self.missing)

    # --- as the leader ------------------------------------------------------------------------

    async def _watch_topics(self, watch: TopicsWatch) -> None:
        """Watch topics while this member leads: a rebalance notifies the other members of changes."""
        while not self._machine.is_final:
            if self._assigns_topics():
                async with asyncio.TaskGroup() as tasks:
                    watching = tasks.create_task(watch.follow(self._look_now.set))
                    while self._assigns_topics():
                        await self._driver.changed.wait()
                    watching.cancel()
            else:
                await self._driver.changed.wait()

    def _is_watching(self) -> bool:
        return self._watch is not None and self._watch.is_live and self._assigns_topics()

    def _is_fixed(self) -> bool:
        """Whether topics never change: names with fixed counts. Subscriptions still may."""
        return self._selection.pattern is None and isinstance(self._role.counts, Mapping)

    def _assigns_topics(self) -> bool:
        """Whether this member must notice changes of topics for the group."""
        if self._machine.is_final or not self._machine.is_leader:
            return False
        return self._selection.pattern is not None or not self._machine.protocol_name.startswith(SERVER_PREFIX)

    async def _follow_topics(self, plan: Plan | None, listing: TopicListing | None) -> bool:
        """As the leader, assign again when topics have changed: at once if no member loses a partition.

        Return False if that must wait for the next generation.
        """
        if self._machine.protocol_name.startswith(SERVER_PREFIX):
            return True
        if plan is None:
            return False
        topics = await self._role.count(sorted({*plan.subscribed, *self._role.topics}), listing)
        if not self._is_current(plan):
            return False
        if plan.is_about(topics):
            return True
        again, encoded = await self._role.again(plan, topics)
        if not self._is_current(plan):
            return False
        # Under a cooperative strategy a member may still be revoking partitions that it was not assigned: all must join
        # again.
        at_once = not self._withholds() and again.keeps_all_of(plan)
        if again.is_same_as(plan) or (at_once and self._machine.resync(encoded)):
            self._role.plan = again
            self._driver.wake.set()
        else:
            changes = "" if plan.topics is None else describe_changes(plan.topics, topics)
            self._driver.rejoin(f"{TOPICS_CHANGED}: {changes}" if changes else TOPICS_CHANGED)
        return True

    def _leads(self) -> bool:
        """Whether this member leads a settled generation, in which the members assign."""
        is_settled = (
            self._machine.state is State.STABLE
            and self._machine.is_leader
            and self._machine.holds(self._driver.now_ms())
        )
        return is_settled and not self._machine.protocol_name.startswith(SERVER_PREFIX)

    def _is_current(self, plan: Plan) -> bool:
        """Return whether the group uses this assignment; this member may have made it under an earlier id."""
        is_of_group = plan.generation.protocol_name == self._machine.protocol_name
        is_latest = plan is self._role.plan or plan.generation.generation_id == self._machine.generation_id
        return is_of_group and is_latest and self._leads() and self._machine.member_id in plan.shares

    def _own_assignment(self) -> Plan | None:
        """This member's assignment, if the group uses it."""
        plan = self._role.plan
        return plan if plan is not None and self._is_current(plan) else None

    async def _read_assignment(self) -> Plan | None:
        """Return the group's assignment from the coordinator, for a leader that has returned and did not make it."""
        if not self._leads():
            return None
        try:
            request = DescribeGroup(self._machine.settings.namespace, self._group_id)
            group = await self._caller.ask(request, DescribeReply)
        except CoordinatorError as error:
            if not error.retriable:
                # It cannot be compared with the registered topics, so it is made anew, once.
                self._driver.rejoin(f"its assignment cannot be read: {error}")
            raise
        if group.state != "Stable" or group.generation_id != self._machine.generation_id or not self._leads():
            return None
        return self._role.read_back(group)

    # --- withheld partitions -------------------------------------------------------------------

    async def _reassign_withheld(self) -> None:
        """As the leader, rebalance withheld partitions that no claimant has revoked within half a session.

        The claimant may have restarted since it joined, or may not hold what it claims: it then revokes no partition
        and does not join again. The group's chosen strategy decides, not this member's list.
        """
        checked = -1
        while not self._machine.is_final:
            generation_id = self._machine.generation_id
            if generation_id == checked or not self._withholds():
                await self._driver.changed.wait()
            elif await self._stays_in(generation_id, self._machine.settings.session_timeout_ms / 2000):
                checked = await self._call_for_withheld(generation_id)

    async def _call_for_withheld(self, generation_id: int) -> int:
        """Return the generation that needs no further check, or -1."""
        try:
            rest = await self._count_withheld()
        except Exception as error:
            _log.warning("group %s: its assignment could not be read: %r", self._group_id, error)
            return -1
        if rest and self._machine.generation_id == generation_id:
            self._role.withheld.note_rest()
            self._driver.rejoin(f"{rest} partitions wait for a member")
        return -1 if rest is None else generation_id

    async def _stays_in(self, generation_id: int, seconds: float) -> bool:
        """Wait; return whether this member still leads the same generation afterwards."""
        try:
            async with asyncio.timeout(seconds):
                while self._machine.generation_id == generation_id and self._withholds():
                    await self._driver.changed.wait()
                return False
        except TimeoutError:
            return True

    def _withholds(self) -> bool:
        """Whether this member leads a settled generation of a cooperative strategy."""
        return self._leads() and self._role.is_chosen_cooperative(self._machine.protocol_name)

    async def _count_withheld(self) -> int | None:
        """Return the number of the topics' partitions or copies that wait for a member; None if this generation is
        over.
        """
        plan = self._own_assignment()
        if plan is None and (read := await self._read_assignment()) is not None:
            plan = replace(read, topics=await self._role.count(read.subscribed))
        return None if plan is None else await self._role.rest(plan)
