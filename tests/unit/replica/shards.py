"""Shards to test a replica's rules with: the real core in memory, without a store, a clock or a network."""

from __future__ import annotations

from typing import Any

from rota.core.group.rows import ShardImage
from rota.core.replica.owned_shard import Now, OwnedShard, Ready
from rota.core.replica.ports import SeenMembers, ShardClaim
from rota.protocol.limits import Limits
from rota.protocol.messages import Request
from tests.unit.group.driver import a_commit, a_heartbeat, a_join, a_sync

LEASE_MS = 9_001
LIMITS = Limits(initial_rebalance_delay_ms=100, empty_group_retention_ms=0)
EPOCH = 3
AN_OFFSET = a_commit("", -1)
"""A commit from outside of any group: decided at once, with one entry."""


def at(ms: int) -> Now:
    """A moment so many milliseconds after the shard was loaded, different on the two clocks."""
    return Now(1_000_000 + ms, 500 + ms)


LEASE_ENDS = at(LEASE_MS)
BEAT = a_heartbeat("m", 1, instance="i")
"""A heartbeat of the member of `a_shard_with_a_member`."""
NEVER_MS = 2**40


def a_loading_shard(
    shard_id: int = 0, *, seen: SeenMembers | None = None, image: ShardImage | None = None
) -> tuple[OwnedShard, Ready]:
    """A shard without a durable entry: that it was acquired is still on its way."""
    return OwnedShard.load(
        ShardClaim(shard_id, EPOCH, 0),
        image or ShardImage(shard_id),
        LIMITS,
        at(0),
        replica_id="r",
        lease_until_ms=LEASE_ENDS.monotonic_ms,
        seen=seen,
        reason="it was free",
    )


def a_shard(shard_id: int = 0, *, seen: SeenMembers | None = None) -> OwnedShard:
    """A shard all of which is durable."""
    owned, _ = a_loading_shard(shard_id, seen=seen)
    commit(owned)
    return owned


def commit(owned: OwnedShard, ms: int = 0) -> Ready:
    """The store takes what the shard has decided."""
    return owned.committed(owned.take_batch().last_seq, at(ms))


def a_shard_with_a_member(*, seen: SeenMembers | None = None) -> OwnedShard:
    """Its group is Stable, with the member `m` in generation 1."""
    owned = a_shard(seen=seen)
    ready = decide(owned, 1, a_join(new="m", instance="i"))
    for timer in ready.timers:
        owned.on_timer(timer, at(200))
    commit(owned, 200)
    decide(owned, 2, a_sync("m", 1, "i", m=b"share"), 200)
    commit(owned, 200)
    assert owned.waiting == 0
    return owned


def decide(owned: OwnedShard, number: int, request: Request, ms: int = 0) -> Ready:
    """The shard receives a request."""
    return owned.submit(number, request, at(ms))


def reply_to(ready: Ready, number: int) -> Any:
    """The reply that leaves in this step."""
    replies = dict(ready.replies)
    assert number in replies, f"call {number} has no reply yet"
    return replies[number].reply


class ReplicaOfOneShard:
    """A replica with one shard and no lease to renew. Its clocks stand still but for `later`."""

    owned: OwnedShard

    def __init__(self) -> None:
        self.now_ms = 50_000

    def load_shard(self, *, seen: SeenMembers | None = None) -> Ready:
        limits = Limits(initial_rebalance_delay_ms=0)
        self.owned, ready = OwnedShard.load(
            ShardClaim(0, 1, 0),
            ShardImage(0),
            limits,
            self.now(),
            replica_id="r",
            lease_until_ms=NEVER_MS,
            seen=seen,
        )
        return ready

    def now(self) -> Now:
        return Now(1_000_000 + self.now_ms, self.now_ms)

    def later(self, ms: int) -> None:
        self.now_ms += ms
