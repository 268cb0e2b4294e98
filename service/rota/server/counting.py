"""A census of the groups of a server."""

from __future__ import annotations

from collections import Counter

from rota.group.state import GroupState
from rota.observability.census import Census
from rota.runtime.clock import Clock, SystemClock
from rota.runtime.coordinator import LocalCoordinator

REBALANCING = (GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE)


def take_census(coordinator: LocalCoordinator, clock: Clock | None = None) -> Census:
    """Look at every group of this replica: a tenth of a microsecond or so for each, on the event loop."""
    now_ms = (clock or SystemClock()).now_ms()
    states: Counter[GroupState] = Counter(dict.fromkeys(GroupState, 0))
    members, quarantined, oldest_since_ms = 0, 0, now_ms
    for group in coordinator.groups():
        states[group.state] += 1
        members += len(group.members)
        quarantined += len(group.quarantine.units)
        if group.state in REBALANCING:
            oldest_since_ms = min(oldest_since_ms, group.state_since_ms)
    return Census(
        is_ready=coordinator.ready()[0],
        shards=coordinator.shard_count,
        shards_due=coordinator.shards_due(),
        groups={state.value: count for state, count in states.items()},
        members=members,
        oldest_rebalance_ms=now_ms - oldest_since_ms,
        quarantined=quarantined,
    )
