"""Rounds of leases without a store: the order of a replica's questions, and its decisions by the answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rota.core.group.rows import ShardImage
from rota.core.replica import leases
from rota.core.replica.forwarding import DRAINING
from rota.core.replica.known_owners import KnownOwners
from rota.core.replica.leases import (
    HANDING_OVER_AT_ONCE,
    LOADING_AT_ONCE,
    MOVES,
    SLACK_MS,
    STORE_RETRY_MS,
    Do,
    Leases,
    shards_of,
)
from rota.core.replica.owned_shard import NOT_AVAILABLE, Now, OwnedShard
from rota.core.replica.ports import (
    RELEASED,
    Floor,
    Renewal,
    Replica,
    ShardClaim,
    ShardOwner,
    StoreLost,
    StoreUnavailable,
)
from rota.protocol.errors import ErrorCode
from tests.unit.replica.shards import AN_OFFSET, LEASE_MS, LIMITS, at, decide

ME, PEER = Replica("r0", "http://r0"), Replica("r1", "http://r1")
SHARDS = 4


class Shell:
    """Carries the rounds out: a store that grants each request, unless a test says otherwise."""

    def __init__(self, *, shards: int = SHARDS, steal: bool = False) -> None:
        self.known = KnownOwners(ME.replica_id, shards)
        self.leases = Leases(ME, self.known, lease_ms=LEASE_MS, **({"steal": True} if steal else {}))
        self.registered = [ME]
        self.owners: list[ShardOwner] = []
        """The rows of the shards that others hold."""
        self.rows: dict[int, ShardOwner] = {}
        """What the store knows of each shard that was ever claimed."""
        self.floors: dict[int, Floor] = {}
        self.taken: set[int] = set()
        """Shards that the store gives to another replica meanwhile: claims and renewals of these fail."""
        self.hanging: set[int] = set()
        """Shards of which the store does not answer the last append."""
        self.unreadable: set[int] = set()
        """Shards of which the rows mean nothing to this release."""
        self.takes_ms: dict[type[Do], int] = {}
        self.fails: set[type[Do]] = set()
        self.failure = StoreUnavailable("the store is away")
        self.before: dict[type[Do], Callable[[], None]] = {}
        """Called while such a step is under way."""
        self.held: set[int] = set()
        """Shards that their former owners say they hold."""
        self.is_failover = False
        """Claims find another timeline."""
        self.now_ms = 0
        self.steps: list[Do] = []

    def now(self) -> Now:
        return at(self.now_ms)

    def round(self) -> list[str]:
        """One round; returns the names of its steps, in order."""
        return self.run(self.leases.round(self.now()))

    def run(self, round_: leases.Steps) -> list[str]:
        self.steps = []
        try:
            do = next(round_)
            while True:
                self.steps.append(do)
                self.now_ms += self.takes_ms.get(type(do), 0)
                self.before.get(type(do), lambda: None)()
                if type(do) in self.fails:
                    do = round_.throw(self.failure)
                else:
                    do = round_.send((self._answer(do), self.now()))
        except StopIteration:
            return self.names()

    def round_that_fails(self) -> list[str]:
        """One round that the store's silence ends; returns the names of its steps, in order."""
        with pytest.raises(StoreUnavailable):
            self.round()
        return self.names()

    def pass_ms(self, ms: int) -> None:
        self.now_ms += ms

    def names(self) -> list[str]:
        return [type(do).__name__ for do in self.steps]

    def did(self, kind: type[Do]) -> list[Any]:
        return [do for do in self.steps if isinstance(do, kind)]

    def _answer(self, do: Do) -> Any:
        match do:
            case leases.ReadOwners():
                asked, now_ms = self.known.memory.ask(), self.now().monotonic_ms
                self.rows |= {row.shard_id: row for row in self.owners}
                self.known.update(list(self.rows.values()), now_ms, asked=asked)
            case leases.Register():
                return self.registered
            case leases.AskOwners(owners):
                return self.held & {owner.shard_id for owner in owners}
            case leases.Claim(shard_ids):
                return [self._claim(shard_id) for shard_id in shard_ids if shard_id not in self.taken]
            case leases.Load(claims):
                return [None if each.shard_id in self.unreadable else self._image(each.shard_id) for each in claims]
            case leases.RaiseFloors(floors):
                self.floors |= floors
            case leases.Serve(loaded, lease_until_ms, _):
                self._serve(loaded, lease_until_ms)
            case leases.Renew(claims):
                rows = [self.rows[each.shard_id] for each in claims if each.shard_id not in self.taken]
                return [Renewal(row.shard_id, row.last_seq, self._floor(row.shard_id)) for row in rows]
            case leases.GiveUp(owned) | leases.DropClosed(owned):
                owned.drop("")
                self.leases.remove(owned)
            case leases.Close(shards, reason):
                for owned in shards:
                    owned.close(reason, self.now())
                    if owned.shard_id not in self.hanging:
                        self.append(owned)
        return None

    def append(self, owned: OwnedShard) -> None:
        """Make durable what the shard has decided."""
        batch = owned.take_batch()
        self.rows[owned.shard_id] = replace(self.rows[owned.shard_id], last_seq=batch.last_seq)
        owned.committed(batch.last_seq, self.now())

    def _claim(self, shard_id: int) -> ShardClaim:
        row = self.rows.get(shard_id, ShardOwner(shard_id, "", "", 0, 0))
        self.rows[shard_id] = replace(row, replica_id=ME.replica_id, address=ME.address, epoch=row.epoch + 1)
        floor = self._floor(shard_id)
        return ShardClaim(shard_id, row.epoch + 1, row.last_seq, floor, row.epoch, row.replica_id, self.is_failover)

    def _floor(self, shard_id: int) -> int:
        return self.floors.get(shard_id, Floor(0, 0)).generation_id

    def _image(self, shard_id: int) -> ShardImage:
        return ShardImage(shard_id, self.rows[shard_id].last_seq)

    def _serve(self, loaded: Any, lease_until_ms: int) -> None:
        for claim, image in loaded:
            owned, _ = OwnedShard.load(
                claim, image, LIMITS, self.now(), replica_id=ME.replica_id, lease_until_ms=lease_until_ms
            )
            self.append(owned)
            self.leases.install(owned)


def a_replica_with_all(shards: int = SHARDS) -> Shell:
    """Alone, with all shards, after its first round."""
    shell = Shell(shards=shards)
    shell.round()
    assert shell.leases.is_complete
    return shell


def a_replica_beside_another(shards: int = SHARDS) -> Shell:
    """It had all shards; another replica has just registered."""
    shell = a_replica_with_all(shards)
    shell.registered = [ME, PEER]
    return shell


def held_by(replica: Replica, left_ms: int, *shard_ids: int) -> list[ShardOwner]:
    return [ShardOwner(shard_id, replica.replica_id, replica.address, 9, left_ms, 99) for shard_id in shard_ids]


# --- a store that is a copy ------------------------------------------------------------------------------


def a_replica_after_another(**fields: Any) -> Shell:
    """The leases of a replica that was there before are over; it says that it holds the first two shards."""
    shell = Shell()
    rows = held_by(PEER, 0, *range(SHARDS))
    shell.owners = [replace(row, **{"peer_address": "r1:1", "lease_until_ms": 7, **fields}) for row in rows]
    shell.held = {0, 1}
    shell.round()
    shell.owners = shell.owners[:2]
    return shell


def claimed(shell: Shell) -> set[int]:
    return {shard_id for claim in shell.did(leases.Claim) for shard_id in claim.shard_ids}


def test_shards_that_their_former_owner_holds_are_not_claimed() -> None:
    shell = a_replica_after_another()

    assert claimed(shell) == {2, 3}
    assert shell.names().index("AskOwners") < shell.names().index("Claim")
    assert not shell.did(leases.StoreCopied), "the store's clock may have been set"


def test_an_owner_that_renews_elsewhere_shows_a_copy() -> None:
    shell = a_replica_after_another()
    shell.now_ms += LEASE_MS - 1
    shell.round()
    assert not shell.did(leases.StoreCopied)
    shell.now_ms += 1
    shell.round()

    assert [[row.shard_id for row in do.owners] for do in shell.did(leases.StoreCopied)] == [[0, 1]]
    shell.now_ms += LEASE_MS - 1
    shell.round()
    assert not shell.did(leases.StoreCopied), "once for each lease"
    assert claimed(shell) == set()


def test_an_owner_that_renews_here_shows_no_copy() -> None:
    """The store's clock was set forwards, and is noticed by the owner's next renewal."""
    shell = a_replica_after_another()
    shell.owners = [replace(row, lease_left_ms=LEASE_MS) for row in shell.owners]
    shell.now_ms += LEASE_MS
    shell.round()
    shell.owners = [replace(row, lease_left_ms=0) for row in shell.owners]
    shell.now_ms += LEASE_MS
    shell.round()

    assert not shell.did(leases.StoreCopied)


def test_a_former_owner_that_holds_nothing_any_more_is_followed() -> None:
    shell = a_replica_after_another()
    shell.held = set()
    shell.now_ms += 1
    shell.round()

    assert claimed(shell) == {0, 1}


@pytest.mark.parametrize("fields", [{"peer_address": ""}, {"lease_until_ms": RELEASED}, {"replica_id": ME.replica_id}])
def test_only_another_owner_that_can_be_asked_is_asked(fields: dict[str, Any]) -> None:
    shell = a_replica_after_another(**fields)

    assert not shell.did(leases.AskOwners)
    assert claimed(shell) == set(range(SHARDS))


# --- starting ------------------------------------------------------------------------------------------


def test_the_first_round_registers_then_claims_loads_and_renews() -> None:
    shell = Shell()

    assert shell.round() == ["ReadOwners", "Register", "NotifyPeers", "Claim", "Load", "Serve", "Renew"]
    assert shell.did(leases.Claim)[0].shard_ids == list(range(SHARDS))
    assert sorted(shell.leases.owned) == shell.leases.due == list(range(SHARDS))


def test_a_replica_is_complete_with_all_that_is_due_to_it() -> None:
    leases = a_replica_with_all().leases
    assert leases.is_all([0, 1, 2, 3])
    assert not leases.is_all([0, 1, 2])

    leases.remove(leases.owned[1])

    assert not leases.is_complete


def test_a_replica_claims_only_shards_that_are_due_to_it() -> None:
    shell = Shell(shards=16)
    shell.registered = [PEER, ME]
    shell.round()

    due = shards_of("r0", ["r0", "r1"], 16)
    assert shell.did(leases.Claim)[0].shard_ids == due
    assert shell.known.peers == [PEER]


def test_a_store_of_this_process_alone_is_taken_whatever_it_says() -> None:
    shell = Shell(steal=True)
    shell.owners = held_by(PEER, 5_000, 0, 1)
    shell.registered = [ME, PEER]
    shell.round()

    assert shell.did(leases.Claim)[0].shard_ids == [0, 1, 2, 3]
    assert shell.known.peers == []


def alone(shards: int = SHARDS) -> Shell:
    """The only process of an embedded store, with all shards."""
    shell = Shell(shards=shards, steal=True)
    shell.round()
    assert shell.leases.is_complete
    return shell


def test_the_only_process_of_a_store_renews_no_lease() -> None:
    shell = alone()

    assert shell.round() == ["ReadOwners", "Register"]


def test_the_only_process_keeps_its_shards_however_late_it_is() -> None:
    shell = alone()
    owned = list(shell.leases.owned.values())
    shell.now_ms += 100 * LEASE_MS

    assert all(each.may_answer(shell.now()) for each in owned)
    assert shell.round() == ["ReadOwners", "Register"]
    assert list(shell.leases.owned.values()) == owned


def test_a_lost_lock_ends_all_shards_at_once() -> None:
    shell = alone()
    shell.fails, shell.failure = {leases.Register}, StoreLost("another service is using this store")

    assert shell.round_that_fails() == ["ReadOwners", "Register", *["GiveUp"] * SHARDS]
    assert {do.reason for do in shell.did(leases.GiveUp)} == {"another service is using this store"}


def test_a_shard_that_another_service_had_meanwhile_is_given_up() -> None:
    shell = alone()
    shell.rows[2] = replace(shell.rows[2], epoch=9, replica_id=PEER.replica_id)

    assert shell.round() == ["ReadOwners", "Register", "GiveUp"]
    assert shell.round()[1:4] == ["Claim", "Load", "Serve"]


def test_free_shards_are_claimed_before_registering_again() -> None:
    shell = Shell()
    shell.owners = held_by(PEER, 1, *range(SHARDS))
    shell.round()
    shell.owners = held_by(PEER, 0, *range(SHARDS))

    assert shell.round() == ["ReadOwners", "Claim", "Load", "Serve", "Register", "Renew"]


def test_leases_are_renewed_while_loading_takes_long() -> None:
    shell = Shell(shards=3 * LOADING_AT_ONCE)
    shell.takes_ms = {leases.Load: LEASE_MS // 3}
    shell.round()

    assert shell.names()[3:] == ["Claim", "Load", "Serve", "Renew"] * 3 + ["Renew"]


def test_portions_get_smaller_until_they_are_loaded_in_time() -> None:
    shell = Shell(shards=2 * LOADING_AT_ONCE)
    each_ms = LEASE_MS // 10
    shell.before[leases.Load] = lambda: shell.pass_ms(each_ms * len(shell.did(leases.Load)[-1].claims))
    rounds = 0
    while not shell.leases.is_complete:
        shell.round()
        rounds += 1

    assert (rounds, len({do.owned.shard_id for do in shell.did(leases.GiveUp)})) == (2, 0)
    assert {len(claim.shard_ids) for claim in shell.did(leases.Claim)[2:]} <= {2, 4}


def test_a_round_goes_on_without_rows_that_cannot_be_read() -> None:
    shell = a_replica_with_all()
    shell.leases.remove(shell.leases.owned[1])
    shell.fails = {leases.Load}

    assert shell.round() == ["ReadOwners", "Claim", "Load", "Register", "Claim", "Load", "Renew"]
    assert 1 not in shell.leases.owned


def test_a_shard_that_another_has_appended_to_is_not_served() -> None:
    """This replica was paused between its claim and its load."""
    shell = Shell()

    def another_claims() -> None:
        shell.rows[1] = replace(shell.rows[1], replica_id=PEER.replica_id, epoch=2, last_seq=shell.rows[1].last_seq + 1)

    shell.before[leases.Load] = another_claims
    shell.round()

    assert [claim.shard_id for claim, _ in shell.did(leases.Serve)[0].loaded] == [0, 2, 3]
    assert sorted(shell.leases.owned) == [0, 2, 3]
    assert not shell.known.memory.setbacks


def test_what_was_loaded_after_its_lease_is_not_served() -> None:
    shell = Shell()
    shell.takes_ms = {leases.Load: LEASE_MS}
    shell.round()

    assert shell.names().count("Load") == 1
    assert not shell.did(leases.Serve)


def test_a_shard_is_served_once_it_can_be_read() -> None:
    shell = Shell()
    shell.unreadable = {1}
    shell.round()
    shell.unreadable = set()

    shell.round()

    assert sorted(shell.leases.owned) == [0, 1, 2, 3]


def test_a_replica_that_leaves_registers_and_claims_nothing() -> None:
    shell = Shell()
    shell.leases.is_leaving = True

    assert shell.round() == ["ReadOwners"]


# --- how long a lease lasts ---------------------------------------------------------------------------------


def test_a_claimed_lease_counts_from_before_the_claim_was_sent() -> None:
    shell = Shell()
    shell.takes_ms = {leases.Claim: 40, leases.Load: 200}
    shell.before[leases.Renew] = lambda: shell.taken.update(range(SHARDS))
    shell.round()

    until = at(LEASE_MS).monotonic_ms
    assert shell.did(leases.Load)[0].lease_until_ms == until
    assert shell.did(leases.Serve)[0].lease_until_ms == until
    assert {do.owned.lease_until_ms for do in shell.did(leases.GiveUp)} == {until}


def test_a_renewed_lease_counts_from_before_the_renewal_was_sent() -> None:
    shell = a_replica_with_all()
    shell.now_ms = 3_000
    shell.takes_ms = {leases.Renew: 500}
    shell.round()

    assert {owned.lease_until_ms for owned in shell.leases.owned.values()} == {at(3_000 + LEASE_MS).monotonic_ms}


def test_a_shard_whose_lease_another_replica_took_is_given_up() -> None:
    shell = a_replica_with_all()
    lost = shell.leases.owned[2]
    shell.taken = {2}
    shell.round()

    assert shell.did(leases.GiveUp) == [leases.GiveUp(lost, "the lease went to another replica")]
    assert sorted(shell.leases.owned) == [0, 1, 3]


def test_a_lease_that_ran_out_before_its_renewal_is_given_up() -> None:
    shell = a_replica_with_all()
    owned = shell.leases.owned[0]
    shell.now_ms = LEASE_MS - 1
    shell.takes_ms = {leases.Renew: 1}
    shell.round()

    given_up = shell.did(leases.GiveUp)
    assert [do.reason for do in given_up] == ["the lease had run out before it was renewed"] * SHARDS
    assert given_up[0].owned is owned


def test_a_shard_dropped_during_its_renewal_stays_dropped() -> None:
    shell = a_replica_with_all()
    dropped = shell.leases.owned[1]
    until = dropped.lease_until_ms

    def drop() -> None:
        dropped.drop("a write has an unknown outcome")
        shell.leases.remove(dropped)

    shell.before[leases.Renew] = drop
    shell.now_ms = 3_000
    shell.round()

    assert (dropped.is_dropped, dropped.lease_until_ms) == (True, until)
    assert sorted(shell.leases.owned) == [0, 2, 3]


def test_leases_that_are_over_are_given_up_without_the_store() -> None:
    shell = a_replica_with_all()
    shell.now_ms = LEASE_MS
    shell.fails = {leases.ReadOwners}

    with pytest.raises(StoreUnavailable):
        shell.round()

    assert [do.reason for do in shell.did(leases.GiveUp)] == ["the lease is over"] * SHARDS
    assert shell.leases.owned == {}


# --- handing over ------------------------------------------------------------------------------------------


def test_a_hand_over_closes_drops_and_releases_in_this_order() -> None:
    shell = a_replica_beside_another()
    moving = [shell.leases.owned[shard_id] for shard_id in shards_of("r1", ["r0"], SHARDS)]

    assert shell.round()[2:] == ["Renew", "Close", "DropClosed", "DropClosed", "Release", "NotifyPeers"]
    assert shell.did(leases.Close) == [leases.Close(moving, MOVES)]
    assert shell.did(leases.DropClosed) == [
        leases.DropClosed(owned, MOVES, ErrorCode.NOT_COORDINATOR, undecided=True) for owned in moving
    ]
    assert shell.did(leases.Release) == [leases.Release([owned.claim for owned in moving])]
    assert sorted(shell.leases.owned) == shell.leases.due


def test_decided_calls_that_are_not_durable_are_not_forwarded() -> None:
    shell = a_replica_beside_another()
    moving = shards_of("r1", ["r0"], SHARDS)[0]
    hanging = shell.leases.owned[moving]
    decide(hanging, 1, AN_OFFSET)
    shell.hanging = {moving}
    shell.round()

    (dropped,) = [do for do in shell.did(leases.DropClosed) if do.owned is hanging]
    assert (dropped.code, dropped.undecided) == (NOT_AVAILABLE, False)


def test_shards_are_handed_over_in_portions() -> None:
    shell = a_replica_beside_another(shards=4 * HANDING_OVER_AT_ONCE)
    shell.round()

    assert len(shell.did(leases.DropClosed)) == HANDING_OVER_AT_ONCE
    assert shell.leases.next_round_ms(0, shell.now(), has_failed=False) == shell.now().monotonic_ms


@pytest.mark.parametrize("slow", [leases.Claim, leases.Load])
def test_a_replica_that_leaves_during_a_claim_gives_it_back(slow: type[Do]) -> None:
    shell = Shell()
    shell.before[slow] = lambda: setattr(shell.leases, "is_leaving", True)

    names = shell.round()

    assert names[-2:] == ["Release", "NotifyPeers"]
    assert "Serve" not in names
    assert [claim.shard_id for claim in shell.did(leases.Release)[0].claims] == list(range(SHARDS))
    assert shell.leases.owned == {}


def test_a_replica_that_stops_releases_all_and_deregisters() -> None:
    shell = a_replica_with_all()
    shards = list(shell.leases.owned.values())

    shell.leases.is_leaving = True
    names = shell.run(shell.leases.leave())

    assert names == ["Close", *["DropClosed"] * 4, "Release", "NotifyPeers"]
    assert shell.did(leases.Close) == [leases.Close(shards, "the replica stops")]
    assert {(do.reason, do.code, do.undecided) for do in shell.did(leases.DropClosed)} == {
        (DRAINING, NOT_AVAILABLE, True)
    }
    assert shell.did(leases.Release) == [leases.Release([owned.claim for owned in shards], deregisters=True)]


def test_a_replica_stops_although_the_store_is_away() -> None:
    shell = a_replica_with_all()
    shell.fails = {leases.Release}
    shell.leases.is_leaving = True

    assert shell.run(shell.leases.leave())[-1] == "NotifyPeers"


# --- when the next round is due ------------------------------------------------------------------------------


def test_rounds_are_a_third_of_a_lease_apart_from_begin_to_begin() -> None:
    shell = a_replica_with_all()

    assert shell.leases.next_round_ms(1_000, at(2_000), has_failed=False) == 1_000 + LEASE_MS // 3


def test_a_failed_round_is_repeated_soon() -> None:
    leases = a_replica_with_all().leases
    soon, late = at(100), at(LEASE_MS)

    assert leases.next_round_ms(1_000, soon, has_failed=True) == soon.monotonic_ms + STORE_RETRY_MS
    assert leases.next_round_ms(1_000, late, has_failed=True) == 1_000 + LEASE_MS // 3


def test_a_round_is_due_when_a_lease_elsewhere_ends() -> None:
    shell = Shell()
    shell.owners = held_by(PEER, 700, *range(SHARDS))
    shell.round()

    assert shell.leases.next_round_ms(500, shell.now(), has_failed=False) == shell.now().monotonic_ms + 700 + SLACK_MS
    assert shell.leases.next_round_ms(-3_000, shell.now(), has_failed=False) == -3_000 + LEASE_MS // 3


def test_a_hand_over_is_followed_by_a_round_at_once() -> None:
    shell = a_replica_beside_another()
    shell.round()
    assert shell.leases.next_round_ms(0, shell.now(), has_failed=False) == shell.now().monotonic_ms
    shell.owners = held_by(
        PEER, LEASE_MS, *[shard_id for shard_id in range(SHARDS) if shard_id not in shell.leases.due]
    )
    shell.round()

    assert shell.leases.next_round_ms(0, shell.now(), has_failed=False) == LEASE_MS // 3
