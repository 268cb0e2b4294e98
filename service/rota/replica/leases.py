"""Which shards a replica has: registering, claiming, loading, renewing, handing over, giving up.

Every replica registers in the store and computes from the same list which replica should own what (`placement.py`). A
replica takes what should be its own and is free, and hands over what should be another's. Only the store's clock judges
a lease; this side counts on its own monotonic clock from before it asked, so it stops answering first.

A round is a generator: it yields what is to be done, one thing at a time, and is sent the answer with the time of it,
or has `StoreUnavailable` thrown into it. Production awaits each answer, the simulator draws when it comes.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from rota.group.rows import ShardImage
from rota.protocol.errors import ErrorCode
from rota.replica.known_owners import KnownOwners
from rota.replica.owned_shard import NOT_AVAILABLE, Now, OwnedShard
from rota.replica.placement import shards_of
from rota.replica.ports import Replica, ShardClaim, StoreUnavailable

LOADING_AT_ONCE = 16
HANDING_OVER_AT_ONCE = 8
"""A new replica gets its share in small portions, so that not all clients come back at once."""
SLACK_MS = 5
STORE_RETRY_MS = 200
MOVES = "the shard moves to another replica"


@dataclass(frozen=True, slots=True)
class LookUp:
    """Ask the store for the owners of all shards, then call `KnownOwners.looked`."""


@dataclass(frozen=True, slots=True)
class Register:
    """Register this replica for as long as a lease; answered with all that are registered."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim these shards; answered with the claims that were made. A lease counts from BEFORE this is sent."""

    shard_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Load:
    """Read the rows of these shards; answered with an image for each, in order. AFTER they were claimed."""

    claims: Sequence[ShardClaim]
    lease_until_ms: int
    """After this it is of no use, and the other leases wait for it."""


@dataclass(frozen=True, slots=True)
class Serve:
    """Make an `OwnedShard` of each, and `install` it."""

    claims: Sequence[ShardClaim]
    images: Sequence[ShardImage]
    lease_until_ms: int


@dataclass(frozen=True, slots=True)
class Renew:
    """Prolong these leases; answered with the shards that are still ours."""

    claims: Sequence[ShardClaim]


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Drop a shard whose memory cannot be trusted, or may not be used; it is claimed and loaded again."""

    owned: OwnedShard
    reason: str


@dataclass(frozen=True, slots=True)
class Close:
    """Have these shards decide nothing more, and what they have decided become durable, for as long as that is worth
    waiting for. BEFORE they are let go.
    """

    shards: Sequence[OwnedShard]
    reason: str


@dataclass(frozen=True, slots=True)
class LetGo:
    """Drop a shard that was closed; see `OwnedShard.drop`."""

    owned: OwnedShard
    told: str
    code: ErrorCode
    undecided: bool


@dataclass(frozen=True, slots=True)
class Release:
    """End these leases now. AFTER the shards were let go: another replica may claim them at once."""

    claims: Sequence[ShardClaim]
    deregisters: bool = False
    """End the registration, too."""


@dataclass(frozen=True, slots=True)
class NotifyPeers:
    """Have the other replicas look: shards have become free, or this replica has come."""


Do: TypeAlias = LookUp | Register | Claim | Load | Serve | Renew | GiveUp | Close | LetGo | Release | NotifyPeers
Steps: TypeAlias = Generator[Do, tuple[Any, Now], None]
"""Each step is sent its answer, None where it has none, and the time then."""


class Leases:
    """The shards of one replica, by its own reckoning."""

    def __init__(self, replica: Replica, known: KnownOwners, *, lease_ms: int, steal: bool = False) -> None:
        """`steal`: the store is this process's alone, so that every lease in it is a dead process's."""
        self.replica = replica
        self.known = known
        self.lease_ms = lease_ms
        self.steal = steal
        self.owned: dict[int, OwnedShard] = {}
        self.due: list[int] = []
        """The shards that this replica should own."""
        self.is_placed = False
        """Whether it is known which shards are due to this replica. None are, where it is one too many."""
        self.is_leaving = False
        """It takes nothing more."""
        self._renewed_ms = 0
        self._is_in_haste = False
        """There is more to hand over."""

    @property
    def is_complete(self) -> bool:
        """Whether every shard that is due to this replica is in memory here."""
        return self.is_placed and all(shard_id in self.owned for shard_id in self.due)

    def is_all(self, answered: Collection[int]) -> bool:
        """Whether these shards are all that this replica has to answer for. Not known before it is placed."""
        return self.is_placed and all(shard_id in answered for shard_id in self.due)

    def install(self, owned: OwnedShard) -> None:
        """The shard was loaded, and is served from now on."""
        self.owned[owned.shard_id] = owned

    def remove(self, owned: OwnedShard) -> bool:
        """False where it is not this one that is served."""
        if self.owned.get(owned.shard_id) is not owned:
            return False
        del self.owned[owned.shard_id]
        return True

    # --- rounds ----------------------------------------------------------------------------------

    def next_round_ms(self, began_ms: int, now: Now, *, has_failed: bool) -> int:
        """When the next round is due, by the monotonic clock.

        From begin to begin: a store that is slow must not stretch what is left between two renewals.
        """
        next_ms = began_ms + self.lease_ms // 3
        if has_failed:
            return min(next_ms, now.monotonic_ms + STORE_RETRY_MS)
        if self._is_in_haste:
            return now.monotonic_ms
        free_ms = self.known.next_free_ms(self.owned)
        return next_ms if free_ms is None else min(next_ms, free_ms + SLACK_MS)

    def round(self, now: Now) -> Steps:
        """What is free comes first: calls wait for it. It may be free because its owner is not up any more.

        A registration ends before its leases: a replica whose leases were seen to be over is not up when it is looked
        at which replicas are.
        """
        self._is_in_haste = False
        now = yield from self._give_up_overdue(now)
        _, now = yield LookUp()
        now = yield from self._acquire(now)
        now = yield from self._survey()
        now = yield from self._acquire(now)
        now = yield from self._renew(now)
        yield from self._hand_over()

    def release_all(self, told: str) -> Steps:
        """Let go of everything at once, so that no client has to wait for a lease to run out.

        A store that does not answer is not waited for: the leases then run out by themselves.
        """
        shards = list(self.owned.values())
        yield from self._let_go(shards, "the replica stops", told, NOT_AVAILABLE)
        with suppress(StoreUnavailable):
            yield Release([owned.claim for owned in shards], deregisters=True)
        yield NotifyPeers()

    def _give_up_overdue(self, now: Now) -> Generator[Do, tuple[Any, Now], Now]:
        """A replica that the store does not answer must not stand in the way of the next owner: it would refuse, for as
        long as it has the shard in memory, the calls of all clients that were directed to it.
        """
        for owned in [owned for owned in self.owned.values() if not owned.may_answer(now)]:
            _, now = yield GiveUp(owned, "the lease is over")
        return now

    def _survey(self) -> Generator[Do, tuple[Any, Now], Now]:
        """Which replicas are up, and what should therefore be ours.

        A registration lives as long as a lease: a replica that cannot renew one cannot renew the other. It is renewed
        before the leases and ends before them, so that whichever sees a dead one's leases end knows already who takes
        over.
        """
        replicas, now = yield Register()
        if self.steal:
            # Whatever else is registered is gone: this process alone can have the store open.
            replicas = [self.replica]
        self.known.peers = [replica for replica in replicas if replica.replica_id != self.replica.replica_id]
        ids = (replica.replica_id for replica in replicas)
        self.due = shards_of(self.replica.replica_id, ids, self.known.shard_count)
        is_new, self.is_placed = not self.is_placed, True
        if is_new:
            # Those that hold what is due to us would otherwise see us only when their next round is due.
            _, now = yield NotifyPeers()
        return now

    def _acquire(self, now: Now) -> Generator[Do, tuple[Any, Now], Now]:
        missing = [shard_id for shard_id in self.due if shard_id not in self.owned]
        free = [shard_id for shard_id in missing if self.steal or self.known.is_free(shard_id)]
        for start in range(0, len(free), LOADING_AT_ONCE):
            if self.is_leaving:
                return now
            now = yield from self._claim_and_load(free[start : start + LOADING_AT_ONCE], now)
            if now.monotonic_ms >= self._renewed_ms + self.lease_ms // 3:
                # Loading everything may take longer than the leases that there are.
                now = yield from self._renew(now)
        return now

    def _claim_and_load(self, shard_ids: Sequence[int], now: Now) -> Generator[Do, tuple[Any, Now], Now]:
        lease_until_ms = now.monotonic_ms + self.lease_ms
        claims, now = yield Claim(shard_ids)
        if not claims:
            return now
        try:
            images, now = yield Load(claims, lease_until_ms)
        except StoreUnavailable:
            return now
        _, now = yield Serve(claims, images, lease_until_ms)
        return now

    def _renew(self, now: Now) -> Generator[Do, tuple[Any, Now], Now]:
        sent, sent_ms = dict(self.owned), now.monotonic_ms
        if not sent:
            return now
        self._renewed_ms = sent_ms
        kept, now = yield Renew([owned.claim for owned in sent.values()])
        for owned, reason in self._renewed(sent, set(kept), sent_ms, now):
            _, now = yield GiveUp(owned, reason)
        return now

    def _renewed(
        self, sent: Mapping[int, OwnedShard], kept: Collection[int], sent_ms: int, now: Now
    ) -> list[tuple[OwnedShard, str]]:
        """Count the new leases; returns what has to be given up, and why."""
        lost: list[tuple[OwnedShard, str]] = []
        for shard_id, owned in sent.items():
            # A shard that was dropped meanwhile stays dropped: this answer is about its old claim (R2).
            if shard_id not in kept:
                lost.append((owned, "the lease went to another replica"))
            elif not owned.may_answer(now):
                # No member could heartbeat in the meantime, so every session has to start afresh.
                lost.append((owned, "the lease had run out before it was renewed"))
            else:
                owned.lease_until_ms = sent_ms + self.lease_ms
        return lost

    def _hand_over(self) -> Steps:
        """Let go of some of what is due to another replica that is up."""
        due = set(self.due)
        moving = [owned for shard_id, owned in self.owned.items() if shard_id not in due][:HANDING_OVER_AT_ONCE]
        if not moving or self.is_leaving:
            return
        yield from self._let_go(moving, MOVES, MOVES, ErrorCode.NOT_COORDINATOR)
        yield Release([owned.claim for owned in moving])
        yield NotifyPeers()
        self._is_in_haste = True

    def _let_go(self, shards: Sequence[OwnedShard], reason: str, told: str, code: ErrorCode) -> Steps:
        """Decide nothing more in these shards, and have the last decisions durable before they are dropped."""
        yield Close(shards, reason)
        for owned in shards:
            # What was decided is durable by now, unless the store hangs; what is parked has decided nothing.
            undecided = owned.is_durable
            yield LetGo(owned, told, code if undecided else NOT_AVAILABLE, undecided)
