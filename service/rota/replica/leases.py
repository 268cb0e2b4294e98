"""Which shards a replica has: registering, claiming, loading, renewing, handing over, giving up.

Every replica registers in the store and computes from the same list which replica should own what (`placement.py`). A
replica takes what should be its own and is free, and hands over what should be another's. Only the store's clock judges
a lease; this side counts on its own monotonic clock from before it asked, so it stops answering first.

An embedded store is locked by its one process, so no clock judges its leases: they last until the lock is lost.

A round is a generator: it yields its steps, one at a time, and is sent the answer with the time of it,
or has `StoreUnavailable` thrown into it. Production awaits each answer, the simulator draws when it comes.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from rota.protocol.errors import ErrorCode
from rota.replica import steps
from rota.replica.forwarding import DRAINING
from rota.replica.known_owners import KnownOwners
from rota.replica.owned_shard import NOT_AVAILABLE, Now, OwnedShard
from rota.replica.placement import shards_of
from rota.replica.ports import RELEASED, Replica, ShardClaim, ShardOwner, StoreLost, StoreUnavailable
from rota.replica.prerequisites import NOT_OWNED
from rota.replica.steps import Do, Loaded, Steps

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
        """False where it is not this one that is served."""
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
                yield steps.GiveUp(owned, str(error))
            raise

    def _round(self, now: Now) -> Steps:
        self._is_in_haste = False
        self._unreadable.clear()
        now = yield from self._give_up_overdue(now)
        _, now = yield steps.ReadOwners()
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
            yield steps.Release([owned.claim for owned in shards], deregisters=True)
        yield steps.NotifyPeers()

    def _give_up_overdue(self, now: Now) -> Generator[Do, tuple[Any, Now], Now]:
        """A replica that the store does not answer drops shards whose leases are over: for as long as it had them in
        memory, it would refuse the calls of all clients that were directed to it.
        """
        for owned in [owned for owned in self.owned.values() if not owned.may_answer(now)]:
            _, now = yield steps.GiveUp(owned, "the lease is over")
        return now

    def _look_back(self, now: Now) -> Generator[Do, tuple[Any, Now], Now]:
        """Where the store went back: answer for nothing more, and raise the floors before anything is claimed again.

        There is one store, so shards that have lost nothing are given up, too; they are loaded again at once.
        """
        memory = self.known.memory
        if memory.setbacks:
            _, now = yield steps.WentBack(tuple(memory.setbacks))
            for owned in list(self.owned.values()):
                _, now = yield steps.GiveUp(owned, WENT_BACK)
            memory.take_setbacks(now.monotonic_ms)
        if memory.floors:
            floors = dict(memory.floors)
            _, now = yield steps.RaiseFloors(floors)
            memory.note_floors(floors)
            memory.floors.clear()
            # An owner reads its floor with its next renewal.
            _, now = yield steps.NotifyPeers()
        if memory.to_compare:
            claims = [ShardClaim(shard_id, 0, 0) for shard_id in sorted(memory.to_compare)]
            with suppress(StoreUnavailable):
                images, now = yield steps.Load(claims, now.monotonic_ms + self.lease_ms)
                read = [image for image in images if image is not None]
                _, now = yield steps.ReportLost(memory.compare_rows(read))
        return now

    def _survey(self) -> Generator[Do, tuple[Any, Now], Now]:
        """Which replicas are up, and what should therefore be ours.

        A registration lives as long as a lease: a replica that cannot renew one cannot renew the other. It is renewed
        before the leases and ends before them, so that a replica that reads a dead one's leases as over knows already
        which one takes over.
        """
        replicas, now = yield steps.Register()
        if self.steal:
            # Whatever else is registered is gone: this process alone can have the store open.
            replicas = [self.replica]
        self.known.peers = [replica for replica in replicas if replica.replica_id != self.replica.replica_id]
        ids = (replica.replica_id for replica in replicas)
        self.due = shards_of(self.replica.replica_id, ids, self.known.shard_count)
        is_new, self.is_placed = not self.is_placed, True
        if is_new:
            # The replicas that hold shards assigned to us would otherwise read of us only in their next round.
            _, now = yield steps.NotifyPeers()
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
            held, now = yield steps.AskOwners(asked)
        since_ms = {shard_id: self._held_since_ms.get(shard_id, now.monotonic_ms) for shard_id in held}
        copied = [
            row for row in asked if now.monotonic_ms >= since_ms.get(row.shard_id, now.monotonic_ms) + self.lease_ms
        ]
        self._held_since_ms = since_ms
        if copied:
            _, now = yield steps.StoreCopied(copied)
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
        claims, now = yield steps.Claim(shard_ids, memory.known_epochs())
        memory.compare_claims(claims, asked)
        if not claims or memory.setbacks:
            return now
        unsure = {claim.shard_id for claim in claims if memory.is_unsure(claim, now.monotonic_ms)}
        try:
            images, now = yield steps.Load(claims, FOREVER_MS if self.steal else lease_until_ms)
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
        _, now = yield steps.Serve(served, lease_until_ms, lost)
        return now

    def _give_back(self, claims: Sequence[ShardClaim]) -> Generator[Do, tuple[Any, Now], Now]:
        """Release shards that were claimed and are not served."""
        yield steps.Release(claims)
        _, now = yield steps.NotifyPeers()
        return now

    def _raise_far(
        self, loaded: Sequence[Loaded], unsure: Collection[int]
    ) -> Generator[Do, tuple[Any, Now], list[Loaded]]:
        """Raise the floors of these shards above whatever may have been granted; returns the claims with them."""
        memory = self.known.memory
        floors = {claim.shard_id: memory.far_floor(claim, image) for claim, image in loaded if claim.shard_id in unsure}
        yield steps.RaiseFloors(floors)
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
                _, now = yield steps.GiveUp(owned, NOT_OWNED)
            return now
        if not sent:
            return now
        self._renewed_ms = sent_ms
        asked = self.known.memory.ask()
        renewals, now = yield steps.Renew([owned.claim for owned in sent.values()])
        self.known.memory.compare_renewals(renewals, asked)
        kept = {renewal.shard_id for renewal in renewals}
        for owned, reason in self._renewed(sent, kept, sent_ms, now):
            _, now = yield steps.GiveUp(owned, reason)
        for renewal in renewals:
            if renewal.generation_floor > sent[renewal.shard_id].shard.generation_floor:
                _, now = yield steps.RaiseGenerations(sent[renewal.shard_id], renewal.generation_floor)
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
        yield steps.Release([owned.claim for owned in moving])
        yield steps.NotifyPeers()
        self._is_in_haste = True

    def _close_and_drop(self, shards: Sequence[OwnedShard], journaled: str, reason: str, code: ErrorCode) -> Steps:
        """Decide nothing more in these shards, and have the last decisions durable before they are dropped.

        `journaled` is the reason in the journal, `reason` that in the answers to waiting calls.
        """
        yield steps.Close(shards, journaled)
        for owned in shards:
            # All decisions are durable by now, unless the store hangs; parked calls have decided nothing.
            undecided = owned.is_durable
            yield steps.DropClosed(owned, reason, code if undecided else NOT_AVAILABLE, undecided)
            self.known.memory.note_released(owned.shard_id)


def _untouched(loaded: Sequence[Loaded]) -> list[Loaded]:
    """The shards to which no other replica has appended since they were claimed: this one may have been paused.

    Served with the lines of a later epoch, a shard would look as if the store had lost them.
    """
    return [(claim, image) for claim, image in loaded if image.last_seq == claim.last_seq]
