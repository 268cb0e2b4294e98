"""The shards of each replica."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rota.core.replica.ports import ShardOwner
from rota.server.console.backend import Backend


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


async def shards_page(backend: Backend) -> dict[str, Any]:
    replicas = owners_by_replica(await backend.owners(), backend.shard_count)
    held = sum(len(replica.shards) for replica in replicas if replica.replica_id)
    return {"replicas": replicas, "shard_count": backend.shard_count, "held": held}
