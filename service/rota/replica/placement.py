"""Which replica should own a shard: rendezvous hashing over those that are alive, with no more for one than its share.

Every replica computes the same answer from the same list. When one comes or goes its own share moves, and a few more:
shards that were with their second choice, or now have to be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b


def preferred_owners(replica_ids: Iterable[str], shard_count: int) -> tuple[str, ...]:
    """By shard, the replica with the highest weight for it of those that have not enough shards yet."""
    return _owners(tuple(sorted(set(replica_ids))), shard_count)


def shards_of(replica_id: str, replica_ids: Iterable[str], shard_count: int) -> list[int]:
    """The shards that `replica_id` should own while `replica_ids` are alive."""
    owners = preferred_owners({*replica_ids, replica_id}, shard_count)
    return [shard_id for shard_id, owner in enumerate(owners) if owner == replica_id]


@lru_cache(maxsize=1)
def _owners(replica_ids: tuple[str, ...], shard_count: int) -> tuple[str, ...]:
    """Asked again a few times a lease, mostly about the same replicas."""
    share = -(-shard_count // len(replica_ids))
    held: Counter[str] = Counter()
    owners: list[str] = []
    for shard_id in range(shard_count):
        free = (replica_id for replica_id in replica_ids if held[replica_id] < share)
        owners.append(max(free, key=lambda replica_id: _weight(shard_id, replica_id)))
        held[owners[-1]] += 1
    return tuple(owners)


def _weight(shard_id: int, replica_id: str) -> bytes:
    return blake2b(f"{shard_id}/{replica_id}".encode(), digest_size=8).digest()
