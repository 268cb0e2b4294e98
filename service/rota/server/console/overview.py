"""The first page: a summary, and the groups that need attention; and the page of shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rota.core.replica.ports import ShardOwner
from rota.protocol.errors import RejectedRequest
from rota.protocol.messages import ListedGroup
from rota.protocol.troubles import harm
from rota.server.console.backend import Asked, Backend, Listing
from rota.server.console.rendering import STATES

_SHOWN = 12


@dataclass(frozen=True, slots=True)
class NamespaceCount:
    """A namespace with groups that the caller may see."""

    name: str
    groups: int
    members: int
    by_state: dict[str, int]


async def overview(asked: Asked, *, sees_server: bool) -> dict[str, Any]:
    """Return the template's values. Replicas are None for callers that may not read the server's metrics."""
    backend = asked.backend
    listed = await _listed(backend)
    counts = [_count(name, listing.groups) for name, listing in listed.items()]
    totals = Counter(group.state for listing in listed.values() for group in listing.groups)
    ready, detail = backend.ready()
    concerns = [(name, group) for name, each in listed.items() for group in each.groups if group.troubles]
    concerns.sort(key=lambda one: harm(one[1].troubles))
    replicas = owners_by_replica(await backend.owners(), backend.shard_count) if sees_server else None
    return {
        "namespaces": counts,
        "totals": {state: totals[state] for state in STATES},
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


@dataclass(frozen=True, slots=True)
class ReplicaShards:
    """A replica with its shards; an empty id is the group of shards without an owner."""

    replica_id: str
    address: str
    shards: tuple[ShardOwner, ...]


def owners_by_replica(owners: Sequence[ShardOwner], shard_count: int) -> list[ReplicaShards]:
    """Return the shards by replica, the one with the most first; shards without an owner are last."""
    held = [owner for owner in owners if owner.replica_id and owner.lease_left_ms > 0]
    by_replica: dict[tuple[str, str], list[ShardOwner]] = {}
    for owner in held:
        by_replica.setdefault((owner.replica_id, owner.address), []).append(owner)
    found = [ReplicaShards(*key, tuple(shards)) for key, shards in by_replica.items()]
    found.sort(key=lambda replica: (-len(replica.shards), replica.replica_id))
    known = {owner.shard_id: owner for owner in owners}
    held_ids = {owner.shard_id for owner in held}
    free = [known.get(n) or ShardOwner(n, "", "", 0, 0) for n in range(shard_count) if n not in held_ids]
    return [*found, ReplicaShards("", "", tuple(free))] if free else found


async def shards_page(asked: Asked) -> dict[str, Any]:
    backend = asked.backend
    replicas = owners_by_replica(await backend.owners(), backend.shard_count)
    held = sum(len(replica.shards) for replica in replicas if replica.replica_id)
    return {"replicas": replicas, "shard_count": backend.shard_count, "held": held}
