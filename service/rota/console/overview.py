"""The first page: a summary, and the groups that need attention."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rota.console.desk import Desk
from rota.console.owners import owners_by_replica
from rota.console.rendering import STATES
from rota.observability.explanation import Explanation, Mood, explain
from rota.protocol.errors import RejectedRequest
from rota.protocol.messages import DescribeReply, ListedGroup

_MOVING = ("PreparingRebalance", "CompletingRebalance")
_LOOKED_AT = 100
_SHOWN = 12
_NAMESPACES = 50


@dataclass(frozen=True, slots=True)
class NamespaceCount:
    """A namespace of which the caller may see groups."""

    name: str
    groups: int
    members: int
    by_state: dict[str, int]


@dataclass(frozen=True, slots=True)
class Concern:
    """A group that needs attention, and why."""

    namespace: str
    group: DescribeReply
    explanation: Explanation


async def overview(desk: Desk, *, sees_server: bool) -> dict[str, Any]:
    """The template's values. Replicas are None for callers that may not read the server's metrics."""
    listed = await _listed(desk)
    counts = [_count(name, groups) for name, groups in listed.items()]
    totals: Counter[str] = Counter()
    for each in counts:
        totals.update(each.by_state)
    ready, detail = desk.ready()
    concerns, looked_at = await _concerns(desk, listed)
    replicas = owners_by_replica(await desk.owners(), desk.shard_count) if sees_server else None
    return {
        "namespaces": counts,
        "totals": {state: totals.get(state, 0) for state in STATES},
        "groups": sum(each.groups for each in counts),
        "members": sum(each.members for each in counts),
        "concerns": concerns[:_SHOWN],
        "more_concerns": max(0, len(concerns) - _SHOWN),
        "not_looked_at": sum(each.groups for each in counts) - totals["Empty"] - looked_at,
        "ready": ready,
        "ready_detail": detail,
        "replicas": replicas,
        "shard_count": desk.shard_count,
        "now_ms": desk.now_ms(),
    }


async def _listed(desk: Desk) -> dict[str, Sequence[ListedGroup]]:
    found: dict[str, Sequence[ListedGroup]] = {}
    refused: RejectedRequest | None = None
    # A caller without any permission gets an error, also while there are no groups yet.
    for name in (await desk.namespaces())[:_NAMESPACES] or ["default"]:
        try:
            groups = (await desk.list_groups(name)).groups
        except RejectedRequest as rejected:
            refused = rejected
            continue
        if groups:
            found[name] = groups
    if refused is not None and not found:
        raise refused
    return found


def _count(name: str, groups: Sequence[ListedGroup]) -> NamespaceCount:
    return NamespaceCount(
        name, len(groups), sum(group.members for group in groups), dict(Counter(group.state for group in groups))
    )


async def _concerns(desk: Desk, listed: dict[str, Sequence[ListedGroup]]) -> tuple[list[Concern], int]:
    """Groups that rebalance, and Stable ones with a member that has sent no heartbeat for long; the worst first.

    And the number of groups that were checked: in a large namespace not every Stable one.
    """
    found: list[Concern] = []
    looked_at = 0
    for namespace, groups in listed.items():
        moving = [group.group_id for group in groups if group.state in _MOVING]
        stable = [group.group_id for group in groups if group.state == "Stable"]
        described = await desk.describe_each(namespace, (moving + stable)[:_LOOKED_AT])
        looked_at += min(len(moving) + len(stable), _LOOKED_AT)
        for each in described.values():
            explanation = explain(each.group, desk.now_ms())
            if explanation.mood in (Mood.WAITING, Mood.BUSY):
                found.append(Concern(namespace, each.group, explanation))
    found.sort(key=lambda one: (one.explanation.mood is not Mood.WAITING, one.namespace, one.group.group_id))
    return found, looked_at
