"""Which shards a replica has: registering, claiming, loading, renewing, handing over, giving up.

Every replica registers in the store and computes from the same list which replica should own what (`leases.py`). A
replica takes what should be its own and is free, and hands over what should be another's. Only the store's clock judges
a lease; this side counts on its own monotonic clock from before it asked, so it stops answering first.

An embedded store is locked by its one process, so no clock judges its leases: they last until the lock is lost.

A round is a generator: it yields its steps, one at a time, and is sent the answer with the time of it,
or has `StoreUnavailable` thrown into it. Production awaits each answer, the simulator draws when it comes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any, TypeAlias

from rota.core.group.rows import ShardImage
from rota.core.group.shard import Lost
from rota.core.replica.forwarding import DRAINING
from rota.core.replica.going_back import LostFact, Setback
from rota.core.replica.known_owners import KnownOwners
from rota.core.replica.owned_shard import NOT_AVAILABLE, NOT_OWNED, Now, OwnedShard
from rota.core.replica.ports import RELEASED, Floor, Replica, ShardClaim, ShardOwner, StoreLost, StoreUnavailable
from rota.protocol.errors import ErrorCode

# --- placement, by rendezvous hashing -------------------------------------------------------------

# Every replica computes the same answer from the same list. When one starts or stops, its own share moves, and a few
# more: shards that were with their second choice, or now have to be.


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


# --- what a round has its shell do ----------------------------------------------------------------


Loaded: TypeAlias = tuple[ShardClaim, ShardImage]
"""A claim, and the shard's rows after it."""


@dataclass(frozen=True, slots=True)
class ReadOwners:
    """Read the owners of all shards from the store, then call `KnownOwners.update`."""


@dataclass(frozen=True, slots=True)
class Register:
    """Register this replica for as long as a lease; answered with all that are registered."""


@dataclass(frozen=True, slots=True)
class AskOwners:
    """Ask these former owners whether they hold the shard in that epoch, with a lease that is not over; answered with
    the shards that they say they do. Best effort: an owner that does not answer within a moment holds none.
    """

    owners: Sequence[ShardOwner]


@dataclass(frozen=True, slots=True)
class StoreCopied:
    """The owners of these shards renew their leases in another store, of which this one is a copy: report it."""

    owners: Sequence[ShardOwner]


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim these shards; answered with the claims that were made. A lease counts from BEFORE this is sent."""

    shard_ids: Sequence[int]
    known_epochs: Mapping[int, int]
    """See `ShardStore.claim`."""


@dataclass(frozen=True, slots=True)
class Load:
    """Read the rows of these shards, AFTER they were claimed; answered with an image for each, in order.

    None for a shard of which the rows mean nothing to this release: report it.
    """

    claims: Sequence[ShardClaim]
    lease_until_ms: int
    """After this it is of no use, and the other leases wait for it."""


@dataclass(frozen=True, slots=True)
class Serve:
    """Make an `OwnedShard` of each, and `install` it. Where that raises, report it, and serve the others."""

    loaded: Sequence[Loaded]
    lease_until_ms: int
    lost: Mapping[int, Lost]
    """For `OwnedShard.load`, by shard id."""


@dataclass(frozen=True, slots=True)
class Renew:
    """Prolong these leases; answered with a `Renewal` of each that is still ours."""

    claims: Sequence[ShardClaim]


@dataclass(frozen=True, slots=True)
class WentBack:
    """The store went back to an earlier state: report it. All shards are given up after this."""

    setbacks: Sequence[Setback]


@dataclass(frozen=True, slots=True)
class RaiseFloors:
    """Write these floors, by shard id. BEFORE the shards are claimed again."""

    floors: Mapping[int, Floor]


@dataclass(frozen=True, slots=True)
class ReportLost:
    """Report what this replica remembers and the store has lost."""

    facts: Sequence[LostFact]


@dataclass(frozen=True, slots=True)
class RaiseGenerations:
    """Call `OwnedShard.raise_generations`: another replica has raised the floor of this shard."""

    owned: OwnedShard
    floor: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Drop a shard because its memory cannot be trusted, or may not be used; it is claimed and loaded again."""

    owned: OwnedShard
    reason: str


@dataclass(frozen=True, slots=True)
class Close:
    """Have these shards decide nothing more, and what they have decided become durable, for as long as that is worth
    waiting for. BEFORE they are dropped.
    """

    shards: Sequence[OwnedShard]
    reason: str


@dataclass(frozen=True, slots=True)
class DropClosed:
    """Drop a shard that was closed; see `OwnedShard.drop`."""

    owned: OwnedShard
    reason: str
    code: ErrorCode
    undecided: bool


@dataclass(frozen=True, slots=True)
class Release:
    """End these leases now. AFTER the shards were dropped: another replica may claim them at once."""

    claims: Sequence[ShardClaim]
    deregisters: bool = False
    """End the registration, too."""


@dataclass(frozen=True, slots=True)
class NotifyPeers:
    """Have the other replicas begin a round: shards have become free, or this replica has started."""


Do: TypeAlias = (
    ReadOwners
    | Register
    | AskOwners
    | StoreCopied
    | Claim
    | Load
    | Serve
    | Renew
    | WentBack
    | RaiseFloors
    | ReportLost
    | RaiseGenerations
    | GiveUp
    | Close
    | DropClosed
    | Release
    | NotifyPeers
)
Steps: TypeAlias = Generator[Do, tuple[Any, Now], None]
"""Each step is sent its answer, None if it has none, and the time then."""


# --- rounds ---------------------------------------------------------------------------------------


LOADING_AT_ONCE = 16
HANDING_OVER_AT_ONCE = 8
"""A new replica gets its share in small portions, so that not all clients come back at once."""
FOREVER_MS = 2**62
SLACK_MS = 5
STORE_RETRY_MS = 200
RETRY_MS = 20
"""A replica that gave shards up begins the next round so much later: no tight loop where the store keeps failing."""
MOVES = "the shard moves to another replica"
WENT_BACK = "the store went back to an earlier state"


class Leases:
    """The shards of one replica, by its own reckoning."""

    def __init__(self, replica: Replica, known: KnownOwners, *, lease_ms: int, steal: bool = False) -> None:
        """`steal`: this process alone has the store open. Every lease in it is a dead process's, and its own last."""
        self.replica = replica
        self.known = known
        self.lease_ms = lease_ms
        self.steal = steal
        self.owned: dict[int, OwnedShard] = {}
        known.memory.owned = self.owned
        self.due: list[int] = []
        """The shards that this replica should own."""
        self.is_placed = False
        """Whether it is known which shards are due to this replica. None are, where it is one too many."""
        self.is_leaving = False
        """It takes nothing more: see `leave`."""
        self._renewed_ms = 0
        self._loading_at_once = LOADING_AT_ONCE
        """Fewer after a portion that took too long, or a busy machine with a slow store would load it forever."""
        self._has_failed_to_load = False
        self._is_in_haste = False
        """There is more to hand over."""
        self._held_since_ms: dict[int, int] = {}
        """Since when the owners of shards that are free in this store say that they hold them."""
        self._unreadable: set[int] = set()
        """Shards that this round could not read: the next one tries again, and no other shard waits for them."""

    @property
    def is_complete(self) -> bool:
        """Whether every shard that is due to this replica is in memory here."""
        return self.is_placed and all(shard_id in self.owned for shard_id in self.due)

    def is_all(self, answered: Collection[int]) -> bool:
        """Whether these shards are all that this replica has to answer for. Not known before it is placed."""
        return self.is_placed and all(shard_id in answered for shard_id in self.due)

    def install(self, owned: OwnedShard) -> None:
        """The shard was loaded, and is served from now on."""
        if self.steal:
            owned.lease_until_ms = FOREVER_MS
        self.owned[owned.shard_id] = owned
        self.known.memory.note_served(owned.shard_id)

    def remove(self, owned: OwnedShard) -> bool:
        """False if it is not this one that is served."""
        if self.owned.get(owned.shard_id) is not owned:
            return False
        del self.owned[owned.shard_id]
        self.known.memory.note_dropped(owned)
        return True

    # --- rounds ----------------------------------------------------------------------------------

    def next_round_ms(self, began_ms: int, now: Now, *, has_failed: bool) -> int:
        """When the next round is due, by the monotonic clock.

        It counts from begin to begin: a slow store must not shorten the time that is left to renew a lease.
        """
        next_ms = began_ms + self.lease_ms // 3
        if has_failed:
            return min(next_ms, now.monotonic_ms + STORE_RETRY_MS)
        if self._is_in_haste:
            return now.monotonic_ms
        free_ms = self.known.next_free_ms(self.owned.keys() | self._held_since_ms.keys())
        return next_ms if free_ms is None else min(next_ms, free_ms + SLACK_MS)

    def round(self, now: Now) -> Steps:
        """Free shards come first: calls wait for them. One may be free because its owner is not up any more.

        The replica may begin to leave, and release all, while a slow step of the round is under way: after it the round
        takes nothing more, and gives back what that step has taken.

        A registration ends before its leases: a replica whose leases were read as over is not among those that a later
        registration returns.
        """
        try:
            yield from self._round(now)
        except StoreLost as error:
            # Another process may serve these shards by now.
            for owned in list(self.owned.values()):
                yield GiveUp(owned, str(error))
            raise

    def _round(self, now: Now) -> Steps:
        self._is_in_haste = False
        self._unreadable.clear()
        now = yield from self._give_up_overdue(now)
        _, now = yield ReadOwners()
        now = yield from self._look_back(now)
        now = yield from self._acquire(now)
        if not self.is_leaving:
            now = yield from self._survey()
            now = yield from self._acquire(now)
        now = yield from self._renew(now)
        if self.known.memory.setbacks:
            yield from self._look_back(now)
            self._is_in_haste = True
        else:
            yield from self._hand_over()

    def leave(self) -> Steps:
        """Stop in order: take nothing more, and release all shards at once, so that no client waits for a lease to end.

        At once, and not when the last connection has ended: until then no other replica may answer for these groups.
        A store that does not answer is not waited for: the leases then run out by themselves.

        BEFORE this, the shell sets `is_leaving` and lets the round under way end, for as long as that is worth waiting
        for, and takes no new calls.
        """
        assert self.is_leaving
        shards = list(self.owned.values())
        yield from self._close_and_drop(shards, "the replica stops", DRAINING, NOT_AVAILABLE)
        with suppress(StoreUnavailable):
            yield Release([owned.claim for owned in shards], deregisters=True)
        yield NotifyPeers()

    def _give_up_overdue(self, now: Now) -> Generator[Do, tuple[Any, Now], Now]:
        """A replica that the store does not answer drops shards whose leases are over: for as long as it had them in
        memory, it would refuse the calls of all clients that were directed to it.
        """
        for owned in [owned for owned in self.owned.values() if not owned.may_answer(now)]:
            _, now = yield GiveUp(owned, "the lease is over")
        return now

    def _look_back(self, now: Now) -> Generator[Do, tuple[Any, Now], Now]:
        """Where the store went back: answer for nothing more, and raise the floors before anything is claimed again.

        There is one store, so shards that have lost nothing are given up, too; they are loaded again at once.
        """
        memory = self.known.memory
        if memory.setbacks:
            _, now = yield WentBack(tuple(memory.setbacks))
            for owned in list(self.owned.values()):
                _, now = yield GiveUp(owned, WENT_BACK)
            memory.take_setbacks(now.monotonic_ms)
        if memory.floors:
            floors = dict(memory.floors)
            _, now = yield RaiseFloors(floors)
            memory.note_floors(floors)
            memory.floors.clear()
            # An owner reads its floor with its next renewal.
            _, now = yield NotifyPeers()
        if memory.to_compare:
            claims = [ShardClaim(shard_id, 0, 0) for shard_id in sorted(memory.to_compare)]
            with suppress(StoreUnavailable):
                images, now = yield Load(claims, now.monotonic_ms + self.lease_ms)
                read = [image for image in images if image is not None]
                _, now = yield ReportLost(memory.compare_rows(read))
        return now

    def _survey(self) -> Generator[Do, tuple[Any, Now], Now]:
        """Which replicas are up, and what should therefore be ours.

        A registration lives as long as a lease: a replica that cannot renew one cannot renew the other. It is renewed
        before the leases and ends before them, so that a replica that reads a dead one's leases as over knows already
        which one takes over.
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
            # The replicas that hold shards assigned to us would otherwise read of us only in their next round.
            _, now = yield NotifyPeers()
        return now

    def _acquire(self, now: Now) -> Generator[Do, tuple[Any, Now], Now]:
        missing = [shard_id for shard_id in self.due if shard_id not in self.owned.keys() | self._unreadable]
        free = [shard_id for shard_id in missing if self.steal or self._is_free(shard_id, now)]
        if not self.steal:
            free, now = yield from self._without_held(free, now)
        self._has_failed_to_load = False
        while free and not (self.is_leaving or self.known.memory.setbacks):
            at_once, began_ms = self._loading_at_once, now.monotonic_ms
            portion, free = free[:at_once], free[at_once:]
            # Also if the store fails, which ends the round.
            self._loading_at_once = max(1, at_once // 2)
            now = yield from self._claim_and_load(portion, now)
            if self._has_failed_to_load:
                # The time is not known any more: the next portion waits for the next answer.
                return now
            took_ms = now.monotonic_ms - began_ms
            if took_ms < self.lease_ms // 2:
                is_quick = took_ms < self.lease_ms // 5
                self._loading_at_once = min(at_once * 2, LOADING_AT_ONCE) if is_quick else at_once
            if now.monotonic_ms >= self._renewed_ms + self.lease_ms // 3:
                # Loading everything may take longer than the leases that there are.
                now = yield from self._renew(now)
        return now

    def _without_held(self, free: Sequence[int], now: Now) -> Generator[Do, tuple[Any, Now], tuple[list[int], Now]]:
        """Leave out the shards that their former owners still hold, though their leases are over in this store.

        Such an owner renews its leases in another store: this one is a copy that was made while replicas ran, and a
        claim would give out the same tokens twice. In one store it could only be because the store's clock was set, and
        the owner's next renewal shows that: so it is reported only after the length of a lease.
        """
        asked = [row for row in map(self.known.owners.get, free) if row is not None and self._may_be_held(row)]
        held: Collection[int] = ()
        if asked:
            held, now = yield AskOwners(asked)
        since_ms = {shard_id: self._held_since_ms.get(shard_id, now.monotonic_ms) for shard_id in held}
        copied = [
            row for row in asked if now.monotonic_ms >= since_ms.get(row.shard_id, now.monotonic_ms) + self.lease_ms
        ]
        self._held_since_ms = since_ms
        if copied:
            _, now = yield StoreCopied(copied)
            since_ms |= {row.shard_id: now.monotonic_ms for row in copied}
        return [shard_id for shard_id in free if shard_id not in held], now

    def _may_be_held(self, row: ShardOwner) -> bool:
        """A lease that was not released, of a replica that can be asked."""
        return bool(row.peer_address) and row.lease_until_ms != RELEASED and row.replica_id != self.replica.replica_id

    def _is_free(self, shard_id: int, now: Now) -> bool:
        """Also by this replica's clock: where the store's was set, the owner may go on for the length of one lease."""
        set_ms = self.known.clock_set_ms
        is_judged = set_ms is None or now.monotonic_ms >= set_ms + self.lease_ms
        needs_no_clock = self.known.is_no_other(shard_id) or self.known.is_released(shard_id)
        return self.known.is_free(shard_id) and (is_judged or needs_no_clock)

    def _claim_and_load(self, shard_ids: Sequence[int], now: Now) -> Generator[Do, tuple[Any, Now], Now]:
        lease_until_ms = now.monotonic_ms + self.lease_ms
        memory = self.known.memory
        asked = memory.ask()
        claims, now = yield Claim(shard_ids, memory.known_epochs())
        memory.compare_claims(claims, asked)
        if not claims or memory.setbacks:
            return now
        unsure = {claim.shard_id for claim in claims if memory.is_unsure(claim, now.monotonic_ms)}
        try:
            images, now = yield Load(claims, FOREVER_MS if self.steal else lease_until_ms)
        except StoreUnavailable:
            self._has_failed_to_load = True
            return now
        read = [(claim, image) for claim, image in zip(claims, images, strict=True) if image is not None]
        self._unreadable.update({claim.shard_id for claim in claims} - {claim.shard_id for claim, _ in read})
        memory.compare_images(read)
        if memory.setbacks or (now.monotonic_ms >= lease_until_ms and not self.steal):
            return now
        if self.is_leaving:
            return (yield from self._give_back(claims))
        served = _untouched(read)
        if unsure:
            served = yield from self._raise_far(served, unsure)
        lost = {shard_id: memory.lost[shard_id] for shard_id in shard_ids if shard_id in memory.lost}
        _, now = yield Serve(served, lease_until_ms, lost)
        return now

    def _give_back(self, claims: Sequence[ShardClaim]) -> Generator[Do, tuple[Any, Now], Now]:
        """Release shards that were claimed and are not served."""
        yield Release(claims)
        _, now = yield NotifyPeers()
        return now

    def _raise_far(
        self, loaded: Sequence[Loaded], unsure: Collection[int]
    ) -> Generator[Do, tuple[Any, Now], list[Loaded]]:
        """Raise the floors of these shards above whatever may have been granted; returns the claims with them."""
        memory = self.known.memory
        floors = {claim.shard_id: memory.far_floor(claim, image) for claim, image in loaded if claim.shard_id in unsure}
        yield RaiseFloors(floors)
        memory.note_floors(floors)
        return [
            (replace(claim, generation_floor=floors[claim.shard_id].generation_id), image)
            if claim.shard_id in floors
            else (claim, image)
            for claim, image in loaded
        ]

    def _renew(self, now: Now) -> Generator[Do, tuple[Any, Now], Now]:
        sent, sent_ms = dict(self.owned), now.monotonic_ms
        if self.steal:
            # No renewal is due, but the lock may have been another service's since the last round.
            rows = self.known.owners
            taken = [each for shard_id, each in sent.items() if shard_id in rows and rows[shard_id].epoch > each.epoch]
            for owned in taken:
                _, now = yield GiveUp(owned, NOT_OWNED)
            return now
        if not sent:
            return now
        self._renewed_ms = sent_ms
        asked = self.known.memory.ask()
        renewals, now = yield Renew([owned.claim for owned in sent.values()])
        self.known.memory.compare_renewals(renewals, asked)
        kept = {renewal.shard_id for renewal in renewals}
        for owned, reason in self._renewed(sent, kept, sent_ms, now):
            _, now = yield GiveUp(owned, reason)
        for renewal in renewals:
            if renewal.generation_floor > sent[renewal.shard_id].shard.generation_floor:
                _, now = yield RaiseGenerations(sent[renewal.shard_id], renewal.generation_floor)
        return now

    def _renewed(
        self, sent: Mapping[int, OwnedShard], kept: Collection[int], sent_ms: int, now: Now
    ) -> list[tuple[OwnedShard, str]]:
        """Count the new leases; returns what has to be given up, and why."""
        lost: list[tuple[OwnedShard, str]] = []
        for shard_id, owned in sent.items():
            # A shard that was dropped meanwhile stays dropped: this answer is about its old claim (R2).
            if shard_id not in kept:
                lost.append((owned, NOT_OWNED))
            elif not owned.may_answer(now):
                # No member could heartbeat in the meantime, so every session has to start afresh.
                lost.append((owned, "the lease had run out before it was renewed"))
            else:
                owned.lease_until_ms = sent_ms + self.lease_ms
        return lost

    def _hand_over(self) -> Steps:
        """Release some of the shards that are due to another replica that is up."""
        due = set(self.due)
        moving = [owned for shard_id, owned in self.owned.items() if shard_id not in due][:HANDING_OVER_AT_ONCE]
        if not moving or self.is_leaving:
            return
        yield from self._close_and_drop(moving, MOVES, MOVES, ErrorCode.NOT_COORDINATOR)
        yield Release([owned.claim for owned in moving])
        yield NotifyPeers()
        self._is_in_haste = True

    def _close_and_drop(self, shards: Sequence[OwnedShard], journaled: str, reason: str, code: ErrorCode) -> Steps:
        """Decide nothing more in these shards, and have the last decisions durable before they are dropped.

        `journaled` is the reason in the journal, `reason` that in the answers to waiting calls.
        """
        yield Close(shards, journaled)
        for owned in shards:
            # All decisions are durable by now, unless the store hangs; parked calls have decided nothing.
            undecided = owned.is_durable
            yield DropClosed(owned, reason, code if undecided else NOT_AVAILABLE, undecided)
            self.known.memory.note_released(owned.shard_id)


def _untouched(loaded: Sequence[Loaded]) -> list[Loaded]:
    """The shards to which no other replica has appended since they were claimed: this one may have been paused.

    Served with the lines of a later epoch, a shard would look as if the store had lost them.
    """
    return [(claim, image) for claim, image in loaded if image.last_seq == claim.last_seq]
