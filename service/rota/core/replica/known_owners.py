"""The other replicas that are up, and the owner of each shard, as of the last read of the store.

The store's clock may be set: by NTP, or by a failover to a host whose clock is ahead. Then a lease seems to be over
while its owner, on its own clock, goes on to answer. So each read is compared with this replica's monotonic clock. Once
the store's clock has been set, a lease that seems over may go on for the length of one lease. The first read cannot be
compared, so it counts as if the clock had just been set.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import NamedTuple

from rota.core.replica.going_back import Asked, StoreMemory
from rota.core.replica.ports import RELEASED, Replica, ShardOwner

UNCLAIMED_MS = 100
"""A free shard is read again after so long: it is due to a replica that was up a moment ago, and may be dead."""


SLACK_MS = 50
"""By so much two clocks may differ without one having been set; beside a thousandth of the time between two reads."""


class Ahead(NamedTuple):
    """How far the store's clock is ahead of this replica's: between `least_ms` and `most_ms`, known at `at_ms`."""

    least_ms: int
    most_ms: int
    at_ms: int

    def seen_later(self, now_ms: int) -> Ahead:
        drift_ms = (now_ms - self.at_ms) // 1_000
        return Ahead(self.least_ms - drift_ms, self.most_ms + drift_ms, now_ms)


class KnownOwners:
    """Only the store knows the owners for sure: this says which replica to ask, and when to claim."""

    def __init__(self, replica_id: str, shard_count: int) -> None:
        self.owners: dict[int, ShardOwner] = {}
        """Every shard's owner, as of the last read."""
        self.peers: list[Replica] = []
        """The other replicas that are up."""
        self.replica_id = replica_id
        self.shard_count = shard_count
        self.memory = StoreMemory(replica_id)
        """What the store is compared with, for it may go back to an earlier state."""
        self.on_setback: Callable[[], None] | None = None
        """Begins a round: a read that a waiting call has asked for shows that the store went back."""
        self.read_ms = 0
        """When the last read was sent, by the monotonic clock."""
        self.clock_set_ms: int | None = None
        """When a read last showed that the store's clock may have been set, by the monotonic clock."""
        self._ahead: Ahead | None = None

    def update(
        self,
        owners: Iterable[ShardOwner],
        sent_ms: int,
        answered_ms: int | None = None,
        asked: Asked | None = None,
    ) -> None:
        """The store has answered a read that was sent then. `asked` is what `memory.ask` returned before.

        Answers may come in another order than the reads were carried out in. A row of an epoch before the known one
        says nothing new: by that row a shard would count as released that another replica has claimed since.
        """
        rows = {owner.shard_id: owner for owner in owners}
        if asked is not None:
            self.memory.compare_owners(rows.values(), asked)
            if self.memory.setbacks and self.on_setback is not None:
                self.on_setback()
        kept = {shard_id: self.owners.get(shard_id) for shard_id, row in rows.items() if self.memory.is_outdated(row)}
        self.owners = {**rows, **{shard_id: row for shard_id, row in kept.items() if row is not None}}
        self.read_ms = max(sent_ms, self.read_ms)
        shown = next((row.lease_until_ms - row.lease_left_ms for row in rows.values() if row.lease_until_ms), None)
        if shown is not None and answered_ms is not None:
            self._compare_clocks(Ahead(shown - answered_ms, shown - sent_ms, answered_ms))

    def _compare_clocks(self, read: Ahead) -> None:
        """One read is as exact as it was quick, all together are more so, as long as no clock is set."""
        if self._ahead is None:
            self.clock_set_ms, self._ahead = read.at_ms, read
            return
        known = self._ahead.seen_later(read.at_ms)
        if read.least_ms > known.most_ms + SLACK_MS or read.most_ms < known.least_ms - SLACK_MS:
            # Also backwards: it may have been set again, forwards, since an owner renewed its lease.
            self.clock_set_ms, self._ahead = read.at_ms, read
        else:
            least_ms, most_ms = max(read.least_ms, known.least_ms), min(read.most_ms, known.most_ms)
            self._ahead = Ahead(min(least_ms, most_ms), max(least_ms, most_ms), read.at_ms)

    def peer_of(self, shard_id: int) -> Replica | None:
        """The peer that holds a shard, if it is up and its lease was not over at the last read."""
        owner = self.owners.get(shard_id)
        if owner is None or owner.lease_left_ms <= 0:
            return None
        for peer in self.peers:
            if peer.replica_id == owner.replica_id:
                return peer
        return None

    def is_free(self, shard_id: int) -> bool:
        """As far as this replica knows; only the store decides."""
        owner = self.owners.get(shard_id)
        return owner is None or owner.lease_left_ms + self._doubt_ms <= 0 or self.is_no_other(shard_id)

    @property
    def _doubt_ms(self) -> int:
        """By so much the store's clock may have been set without any read having shown it: the store was too slow."""
        return max(0, self._ahead.most_ms - self._ahead.least_ms - SLACK_MS) if self._ahead is not None else 0

    def is_no_other(self, shard_id: int) -> bool:
        """Whether no other replica has ever claimed the shard since this one has."""
        owner = self.owners.get(shard_id)
        return owner is None or owner.replica_id == self.replica_id

    def is_released(self, shard_id: int) -> bool:
        """Whether its owner has given the shard back: no clock has to judge that."""
        owner = self.owners.get(shard_id)
        return owner is not None and owner.lease_until_ms == RELEASED

    def next_free_ms(self, here: Container[int]) -> int | None:
        """When, by the monotonic clock, a shard that is not `here` may become free. A live owner renews long before."""
        elsewhere = (self.owners.get(shard_id) for shard_id in range(self.shard_count) if shard_id not in here)
        left = (owner.lease_left_ms + self._doubt_ms if owner is not None else 0 for owner in elsewhere)
        return min((self.read_ms + (left_ms if left_ms > 0 else UNCLAIMED_MS) for left_ms in left), default=None)
