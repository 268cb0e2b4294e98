"""Which replica should own a shard: rendezvous hashing over those that are alive.

Every replica computes the same answer from the same list, and when one comes or goes only its own share moves.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b


def preferred_owner(shard_id: int, replica_ids: Iterable[str]) -> str | None:
    """The replica with the highest weight for this shard; None where there is none."""
    return max(replica_ids, key=lambda replica_id: _weight(shard_id, replica_id), default=None)


def shards_of(replica_id: str, replica_ids: Iterable[str], shard_count: int) -> list[int]:
    """The shards that `replica_id` should own while `replica_ids` are alive."""
    alive = sorted({*replica_ids, replica_id})
    return [shard_id for shard_id in range(shard_count) if preferred_owner(shard_id, alive) == replica_id]


def _weight(shard_id: int, replica_id: str) -> bytes:
    return blake2b(f"{shard_id}/{replica_id}".encode(), digest_size=8).digest()
