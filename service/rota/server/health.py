"""The census of a server: its groups by state, and their troubles, judged every few seconds."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence

from rota.group.health import has_shares_of_topics, judge, shares_of, unowned_partitions
from rota.group.state import Group, GroupState
from rota.observability.census import Census
from rota.protocol.ids import shard_of
from rota.protocol.messages import Request
from rota.protocol.troubles import TroubleKind
from rota.replica.ports import Answer
from rota.runtime.clock import SystemClock
from rota.runtime.coordinator import LocalCoordinator
from rota.runtime.planning import list_all_topics
from rota.types.topic_facts import partition_counts

INTERVAL_SECONDS = 5.0
_SWEEPS_OF_TOPICS = 12
"""After so many sweeps topics are listed again although no assignment has changed."""
_AT_ONCE = 200
"""Groups that are judged in one turn of the event loop."""


class HealthCheck:
    """Run `run()` as a task that its creator awaits. `ask` reaches the shards of all replicas."""

    def __init__(
        self,
        coordinator: LocalCoordinator,
        ask: Callable[[Request], Awaitable[Answer]],
        critical: Sequence[str] = (),
    ) -> None:
        self._coordinator = coordinator
        self._ask = ask
        self._critical = [
            (namespace, group_id) for namespace, _, group_id in (each.partition("/") for each in critical)
        ]
        self._clock = SystemClock()
        self._topics: dict[str, dict[str, int]] = {}
        """By namespace, as they were listed last."""
        self._sweeps = 0
        self._troubles: Counter[str] = Counter()
        self._of_critical: dict[tuple[str, str], int] = {}

    async def run(self) -> None:
        while True:
            await self.sweep()
            await asyncio.sleep(INTERVAL_SECONDS)

    async def sweep(self) -> None:
        """Look for partitions without an owner, then judge each group of this replica."""
        await self._note_unowned()
        troubles: Counter[str] = Counter()
        shard_count = self._coordinator.shard_count
        hosted = {key for key in self._critical if self._coordinator.hosts_shard(shard_of(*key, shard_count))}
        critical = dict.fromkeys(hosted, 1)  # A critical group that does not exist has one trouble: that.
        for number, group in enumerate(list(self._coordinator.groups())):
            found = judge(group, self._clock.now_ms())
            troubles.update({each.kind: each.number for each in found})
            if group.key in hosted:
                critical[group.key] = len(found)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        self._troubles, self._of_critical = troubles, critical

    async def _note_unowned(self) -> None:
        """Compare the shares that changed since the last sweep, or all if topics may have; in a thread: it may be long.

        That a client's leader assigns changed topics is nothing that the server is notified of.
        """
        refresh = self._sweeps % _SWEEPS_OF_TOPICS == 0
        self._sweeps += 1
        by_namespace: defaultdict[str, list[Group]] = defaultdict(list)
        for group in self._coordinator.groups():
            if has_shares_of_topics(group):
                by_namespace[group.namespace].append(group)
        for namespace, groups in by_namespace.items():
            changed = [group for group in groups if group.unowned[0] != group.generation_id]
            if not (refresh or changed):
                continue
            listed = await list_all_topics(self._ask, namespace)
            if not isinstance(listed, dict):
                continue
            topics = partition_counts(listed)
            due = changed if topics == self._topics.get(namespace) else groups
            self._topics[namespace] = topics
            for group in due:
                if has_shares_of_topics(group):
                    shares = shares_of(group)
                    units = await asyncio.to_thread(unowned_partitions, shares, topics)
                    group.unowned = shares.generation_id, units

    def take_census(self) -> Census:
        """Count every group of this replica, for a scrape: a tenth of a microsecond or so for each."""
        coordinator = self._coordinator
        states: Counter[GroupState] = Counter(dict.fromkeys(GroupState, 0))
        members, quarantined = 0, 0
        for group in coordinator.groups():
            states[group.state] += 1
            members += len(group.members)
            quarantined += len(group.quarantine.units)
        return Census(
            is_ready=coordinator.ready()[0],
            shards=coordinator.shard_count,
            shards_due=coordinator.shards_due(),
            groups={state.value: count for state, count in states.items()},
            members=members,
            quarantined=quarantined,
            troubles={kind.value: self._troubles[kind.value] for kind in TroubleKind},
            critical={"/".join(key): number for key, number in self._of_critical.items()},
        )
