"""What a server counts from outside of its runtime: a census of its groups, and the calls that its peers answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence

from rota.group.state import GroupState
from rota.observability.census import Census
from rota.observability.metrics import Metrics
from rota.protocol.messages import Request
from rota.replica.forwarding import ForwardedAtOnce, NoAnswer
from rota.replica.ports import Answer, JournalEvent, Replica
from rota.runtime.clock import Clock, SystemClock
from rota.runtime.coordinator import LocalCoordinator
from rota.runtime.forwarding import Peers, PeerUnreachable

REBALANCING = (GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE)
UNREACHABLE = "UNREACHABLE"


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


class CountedPeers:
    """Peers, with the calls they answer counted by how."""

    def __init__(self, peers: Peers, metrics: Metrics) -> None:
        self._peers = peers
        self._metrics = metrics

    async def call(self, peer: Replica, request: Request) -> Answer:
        try:
            answer = await self._peers.call(peer, request)
        except PeerUnreachable:
            self._metrics.forwarded(UNREACHABLE)
            raise
        self._metrics.forwarded(answer.reply.error)
        return answer

    def submit(self, peer: Replica, request: ForwardedAtOnce, done: Callable[[Answer | NoAnswer], None]) -> None:
        def counted(outcome: Answer | NoAnswer) -> None:
            self._metrics.forwarded(UNREACHABLE if isinstance(outcome, NoAnswer) else outcome.reply.error)
            done(outcome)

        self._peers.submit(peer, request, counted)

    def watch(
        self, peer: Replica, namespace: str, group_id: str, after_revision: int | None
    ) -> AsyncIterator[JournalEvent]:
        return self._peers.watch(peer, namespace, group_id, after_revision)

    async def notify_released(self, peers: Sequence[Replica]) -> None:
        await self._peers.notify_released(peers)

    async def notify_topics_changed(self, peers: Sequence[Replica], namespaces: Sequence[str]) -> None:
        await self._peers.notify_topics_changed(peers, namespaces)

    async def close(self) -> None:
        await self._peers.close()
