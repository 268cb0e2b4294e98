"""The census of a server: its groups by state, and their troubles, judged every few seconds."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence

from rota.core.group.describe import judge, may_divide_topics, unowned_partitions
from rota.core.group.rows import GroupState
from rota.core.group.state import Group
from rota.core.replica.ports import Answer
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import ListTopics, ListTopicsReply, Request
from rota.protocol.troubles import TroubleKind
from rota.server.observability.census import Census
from rota.server.runtime.clock import SystemClock
from rota.server.runtime.coordinator import LocalCoordinator

INTERVAL_SECONDS = 10.0
"""Also the interval at which the coordinator lists topics for the groups that it assigns."""
_AT_ONCE = 20
"""Maximum number of groups that are judged in one turn of the event loop."""


class HealthCheck:
    """Judges the groups of this replica. Its creator awaits `run()` as a task. `ask` calls the shards of
    all replicas.
    """

    def __init__(
        self, coordinator: LocalCoordinator, ask: Callable[[Request], Awaitable[Answer]], critical: Sequence[str] = ()
    ) -> None:
        self._coordinator = coordinator
        self._ask = ask
        self._critical = critical
        self._topics: dict[str, dict[str, int]] = {}
        """The last listing of topics, by namespace."""
        self._troubles = Counter[str]()
        self._of_critical: dict[str, int] = {}

    async def run(self) -> None:
        await self._coordinator.wait_until_ready()
        while True:
            await self.sweep()
            await asyncio.sleep(INTERVAL_SECONDS)

    async def sweep(self) -> None:
        """Check for partitions without an owner, then judge each group of this replica."""
        by_namespace: defaultdict[str, list[Group]] = defaultdict(list)
        for group in self._coordinator.groups():
            if may_divide_topics(group):
                by_namespace[group.namespace].append(group)
        self._topics = {name: topics for name, topics in self._topics.items() if name in by_namespace}
        for namespace, groups in by_namespace.items():
            await self._note_unowned(namespace, groups)
        troubles, clock = Counter[str](), SystemClock()
        here = [name for name in self._critical if self._coordinator.is_here(*name.split("/"))]
        critical = dict.fromkeys(here, 1)  # A critical group that does not exist counts as one trouble.
        for number, group in enumerate(list(self._coordinator.groups())):
            found = judge(group, clock.now_ms())
            troubles.update({each.kind: each.number for each in found})
            if (name := "/".join(group.key)) in critical:
                critical[name] = len(found)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        self._troubles, self._of_critical = troubles, critical

    async def _note_unowned(self, namespace: str, groups: Sequence[Group]) -> None:
        """Compare new shares with the topics, or all shares with new topics. It runs in a thread, because it may take
        long.

        A client that leads may have missed a change of topics, so the server does not wait for an assignment.
        """
        topics = await self._list_topics(namespace)
        if topics is None:
            return
        former = self._topics.get(namespace)
        self._topics[namespace] = topics
        for group in groups:
            generation_id = group.generation_id
            if topics != former or group.unowned[0] != generation_id:
                members = list(group.members.values())
                number, first = await asyncio.to_thread(unowned_partitions, group, members, topics)
                group.unowned = generation_id, number, first

    async def _list_topics(self, namespace: str) -> dict[str, int] | None:
        """Return the partitions of all topics; None if the list is incomplete."""
        topics: dict[str, int] = {}
        after: str | None = ""
        while after is not None:
            page = (await self._ask(ListTopics(namespace, after))).reply
            if not isinstance(page, ListTopicsReply) or page.error is not ErrorCode.NONE:
                return None
            topics |= {each.topic: each.partitions for each in page.topics}
            after = page.next_after
        return topics

    def take_census(self) -> Census:
        """Count every group of this replica, for a scrape: about 0.1 µs for each."""
        states: Counter[GroupState] = Counter(dict.fromkeys(GroupState, 0))
        members, quarantined = 0, 0
        for group in self._coordinator.groups():
            states[group.state] += 1
            members += len(group.members)
            quarantined += len(group.quarantine.units)
        return Census(
            is_ready=self._coordinator.ready()[0],
            shards=self._coordinator.shard_count,
            shards_due=self._coordinator.shards_due(),
            groups={state.value: count for state, count in states.items()},
            members=members,
            quarantined=quarantined,
            troubles={kind.value: self._troubles[kind.value] for kind in TroubleKind},
            critical=self._of_critical,
        )
