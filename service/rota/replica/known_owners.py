"""The other replicas that are up, and the owner of each shard, as of the last read of the store."""

from __future__ import annotations

from collections.abc import Container, Iterable

from rota.replica.ports import Replica, ShardOwner

UNCLAIMED_MS = 100
"""A free shard is read again after so long: it is due to a replica that was up a moment ago, and may be dead."""


class KnownOwners:
    """Only the store knows the owners for sure: this says which replica to ask, and when to claim."""

    def __init__(self, replica_id: str, shard_count: int) -> None:
        self.owners: dict[int, ShardOwner] = {}
        """Every shard's owner, as of the last read."""
        self.peers: list[Replica] = []
        """The other replicas that are up."""
        self.replica_id = replica_id
        self.shard_count = shard_count
        self.read_ms = 0
        """When the last read was sent, by the monotonic clock."""

    def update(self, owners: Iterable[ShardOwner], sent_ms: int) -> None:
        """The store has answered a read that was sent then."""
        self.owners = {owner.shard_id: owner for owner in owners}
        self.read_ms = sent_ms

    def peer_of(self, shard_id: int) -> Replica | None:
        """The peer that holds a shard, if it is up and its lease was not over at the last read."""
        owner = self.owners.get(shard_id)
        if owner is None or owner.lease_left_ms <= 0:
            return None
        return next((peer for peer in self.peers if peer.replica_id == owner.replica_id), None)

    def is_free(self, shard_id: int) -> bool:
        """As far as this replica knows; only the store decides."""
        owner = self.owners.get(shard_id)
        return owner is None or owner.lease_left_ms <= 0 or owner.replica_id == self.replica_id

    def next_free_ms(self, here: Container[int]) -> int | None:
        """When, by the monotonic clock, a shard that is not `here` may become free. A live owner renews long before."""
        elsewhere = (self.owners.get(shard_id) for shard_id in range(self.shard_count) if shard_id not in here)
        left = (owner.lease_left_ms if owner is not None else 0 for owner in elsewhere)
        return min((self.read_ms + (left_ms if left_ms > 0 else UNCLAIMED_MS) for left_ms in left), default=None)
