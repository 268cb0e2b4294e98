"""The first page: a summary, and the groups that need attention."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rota.protocol.errors import RejectedRequest
from rota.protocol.messages import ListedGroup
from rota.protocol.troubles import harm
from rota.server.console.backend import Backend, Listing
from rota.server.console.owners import owners_by_replica
from rota.server.console.rendering import STATES

_SHOWN = 12


@dataclass(frozen=True, slots=True)
class NamespaceCount:
    """A namespace with groups that the caller may see."""

    name: str
    groups: int
    members: int
    by_state: dict[str, int]


@dataclass(frozen=True, slots=True)
class Concern:
    """A group in trouble."""

    namespace: str
    group: ListedGroup


async def overview(backend: Backend, *, sees_server: bool) -> dict[str, Any]:
    """Return the template's values. Replicas are None for callers that may not read the server's metrics."""
    listed = await _listed(backend)
    counts = [_count(name, listing.groups) for name, listing in listed.items()]
    totals: Counter[str] = Counter()
    for each in counts:
        totals.update(each.by_state)
    ready, detail = backend.ready()
    concerns = [Concern(name, group) for name, each in listed.items() for group in each.groups if group.troubles]
    concerns.sort(key=lambda one: harm(one.group.troubles))
    replicas = owners_by_replica(await backend.owners(), backend.shard_count) if sees_server else None
    return {
        "namespaces": counts,
        "totals": {state: totals.get(state, 0) for state in STATES},
        "groups": sum(each.groups for each in counts),
        "members": sum(each.members for each in counts),
        "concerns": concerns[:_SHOWN],
        "more_concerns": max(0, len(concerns) - _SHOWN),
        "not_whole": [name for name, listing in listed.items() if not listing.whole],
        "ready": ready,
        "ready_detail": detail,
        "replicas": replicas,
        "shard_count": backend.shard_count,
        "now_ms": backend.now_ms(),
    }


async def _listed(backend: Backend) -> dict[str, Listing]:
    found: dict[str, Listing] = {}
    refused: RejectedRequest | None = None
    # A caller without any permission gets an error, even while there are no groups.
    for name in await backend.namespaces() or ["default"]:
        try:
            listing = await backend.list_groups(name)
        except RejectedRequest as rejected:
            refused = rejected
            continue
        if listing.groups:
            found[name] = listing
    if refused is not None and not found:
        raise refused
    return found


def _count(name: str, groups: Sequence[ListedGroup]) -> NamespaceCount:
    return NamespaceCount(
        name, len(groups), sum(group.members for group in groups), dict(Counter(group.state for group in groups))
    )
