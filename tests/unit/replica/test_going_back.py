"""A replica's memory of its store, and its reaction to a store that went back to an earlier state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rota.core.group.rows import ShardImage
from rota.core.replica import leases
from rota.core.replica.going_back import Known, LostFact, StoreMemory, is_setback, lost_facts
from rota.core.replica.leases import WENT_BACK
from rota.core.replica.owned_shard import NOTHING
from rota.core.replica.ports import EPOCHS_SKIPPED, Floor, SeenMembers, ShardClaim, ShardOwner
from rota.protocol.limits import GENERATIONS_RAISED
from tests.unit.group.driver import KEY, a_commit, a_join, a_sync, a_tombstone
from tests.unit.replica.shards import LEASE_MS, a_shard, a_shard_with_a_member, at, commit, decide
from tests.unit.replica.test_leases import ME, PEER, SHARDS, Shell, a_replica_with_all, held_by

REACTION = ["WentBack", *["GiveUp"] * SHARDS, "RaiseFloors", "NotifyPeers", "Load", "ReportLost"]
SERVED_AGAIN = ["Claim", "Load", "Serve", "Register", "Renew"]


def taken_back(shell: Shell, shard_id: int, **changes: object) -> None:
    """The store's row of a shard is as it was once."""
    shell.rows[shard_id] = replace(shell.rows[shard_id], **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "began_at", "is_back"),
    [
        (Known(4, "r0", 50), 40, False),
        (Known(4, "r0", 60), 40, False),
        (Known(4, "r0", 49), 40, True),
        (Known(4, "r1", 60), 40, True),
        (Known(3, "r0", 60), 40, True),
        (Known(5, "r1", 50), 50, False),
        (Known(5, "r1", 70), 49, True),
        (Known(6, "r1", 70), None, False),
        (Known(6, "r1", 49), None, True),
        (Known(0, "", 0), None, True),
    ],
)
def test_a_row_that_cannot_follow_from_what_was_known(found: Known, began_at: int | None, is_back: bool) -> None:
    assert is_setback(Known(4, "r0", 50), found, began_at) is is_back


def test_a_shard_that_was_never_known_is_no_setback() -> None:
    assert not is_setback(Known(0, "", 0), Known(0, "", 0))
    assert not is_setback(Known(0, "", 0), Known(0, "r0", 0))


def test_a_quiet_shard_that_lost_lines_is_found_by_a_renewal() -> None:
    """The owners were read before the store went back, so the renewal is the first to show it."""
    shell = a_replica_with_all()
    shell.before[leases.Renew] = lambda: taken_back(shell, 2, last_seq=0)

    assert shell.round() == ["ReadOwners", "Register", "Renew", *REACTION]
    assert shell.leases.owned == {}
    assert shell.leases.next_round_ms(0, shell.now(), has_failed=False) == shell.now().monotonic_ms
    assert [each.reason for each in shell.did(leases.GiveUp)] == [WENT_BACK] * SHARDS


def refused(shell: Shell, shard_id: int) -> None:
    """The store refuses an append of this shard."""
    owned = shell.leases.owned[shard_id]
    owned.was_refused = True
    owned.drop("refused")
    shell.leases.remove(owned)


def test_a_refusal_that_the_row_does_not_explain_is_a_setback() -> None:
    """The shard is ours and its journal ends where memory does: a side commit is lost, with its offset."""
    shell = a_replica_with_all()
    refused(shell, 2)

    assert shell.round() == ["ReadOwners", "WentBack", *["GiveUp"] * (SHARDS - 1), *REACTION[-4:], *SERVED_AGAIN]
    (setback,) = shell.did(leases.WentBack)[0].setbacks
    assert (setback.shard_id, setback.known) == (2, setback.found)
    assert shell.round() == ["ReadOwners", "Register", "Renew"]


def test_a_claim_after_a_refusal_shows_the_setback_too() -> None:
    """The refusal came while a round was under way that had read the owners before."""
    shell = a_replica_with_all()
    shell.before[leases.Register] = lambda: refused(shell, 2)

    assert shell.round()[:5] == ["ReadOwners", "Register", "Claim", "Renew", "WentBack"]


def test_a_refusal_that_a_later_owner_explains_is_none() -> None:
    shell = a_replica_with_all()
    refused(shell, 2)
    taken_back(shell, 2, replica_id=PEER.replica_id, epoch=shell.rows[2].epoch + 1)

    shell.round()

    assert shell.did(leases.WentBack) == []


def test_a_read_sent_before_the_refusal_shows_nothing() -> None:
    shell = a_replica_with_all()
    asked = shell.known.memory.ask()
    refused(shell, 2)

    shell.known.memory.compare_owners(list(shell.rows.values()), asked)

    assert shell.known.memory.setbacks == []


def test_all_shards_are_given_up_and_loaded_again() -> None:
    shell = a_replica_with_all()
    taken_back(shell, 2, last_seq=0)

    assert shell.round() == ["ReadOwners", *REACTION, "Claim", "Load", "Serve", "Register", "Renew"]
    assert shell.leases.is_complete
    assert [each.shard_id for each in shell.did(leases.WentBack)[0].setbacks] == [2]
    compared = shell.did(leases.Load)[0]
    assert list(compared.claims) == [ShardClaim(2, 0, 0)]
    assert compared.lease_until_ms == shell.now().monotonic_ms + LEASE_MS


def test_the_floor_is_above_what_the_owner_remembers() -> None:
    shell = a_replica_with_all()
    former = shell.leases.owned[2]
    former.shard.tombstones["default", "g"] = a_tombstone(41)
    taken_back(shell, 2, last_seq=0)
    shell.round()

    assert shell.floors == {2: Floor(42, former.epoch + EPOCHS_SKIPPED)}
    assert shell.leases.owned[2].shard.generation_floor == 42
    assert shell.leases.owned[2].epoch > former.epoch


def test_the_floor_is_far_above_where_another_may_have_served() -> None:
    shell = a_replica_with_all()
    former = shell.leases.owned[2]
    former.shard.tombstones["default", "g"] = a_tombstone(41)
    taken_back(shell, 2, last_seq=0)
    shell.now_ms += LEASE_MS
    shell.round()

    assert shell.floors == {2: Floor(42 + GENERATIONS_RAISED, former.epoch + EPOCHS_SKIPPED)}


def test_another_replicas_lost_shard_has_a_far_floor() -> None:
    shell = Shell()
    shell.owners = held_by(PEER, 500, 0)
    shell.round()
    shell.owners = [replace(held_by(PEER, 0, 0)[0], last_seq=7)]

    shell.round()

    assert [each.floors for each in shell.did(leases.RaiseFloors)] == [
        {0: Floor(0, 9 + EPOCHS_SKIPPED)},
        {0: Floor(GENERATIONS_RAISED, 10)},
    ]
    assert shell.leases.owned[0].shard.generation_floor == GENERATIONS_RAISED


def test_another_replicas_floor_is_trusted() -> None:
    shell = Shell()
    shell.owners = held_by(PEER, 500, 0)
    shell.round()
    shell.owners = [replace(held_by(PEER, 500, 0)[0], last_seq=7)]
    shell.round()
    shell.owners = [replace(held_by(PEER, 0, 0)[0], last_seq=8, epoch=1_010)]
    shell.floors[0] = Floor(80, 9)

    shell.round()

    assert shell.did(leases.RaiseFloors) == []
    assert shell.leases.owned[0].shard.generation_floor == 80


def test_nothing_is_claimed_before_the_floors_are_in_the_store() -> None:
    shell = a_replica_with_all()
    taken_back(shell, 2, last_seq=0)
    shell.fails.add(leases.RaiseFloors)

    assert shell.round_that_fails()[-1] == "RaiseFloors"
    assert shell.round_that_fails() == ["ReadOwners", "RaiseFloors"]
    shell.fails.clear()

    assert shell.round()[:3] == ["ReadOwners", "RaiseFloors", "NotifyPeers"]
    assert shell.leases.is_complete


def test_epochs_pass_all_that_were_ever_known() -> None:
    shell = a_replica_with_all()
    taken_back(shell, 2, epoch=0, replica_id="", last_seq=0)
    before = shell.leases.owned[2].epoch

    shell.round()

    assert shell.did(leases.Claim)[0].known_epochs[2] == before


def test_a_new_incarnation_is_a_setback_of_all_shards() -> None:
    shell = a_replica_with_all()
    shell.rows = {row.shard_id: replace(row, incarnation="one") for row in shell.rows.values()}
    assert shell.round() == ["ReadOwners", "Register", "Renew"]

    shell.owners = []
    shell.rows = {row.shard_id: replace(row, incarnation="two") for row in shell.rows.values()}
    shell.round()

    assert [each.shard_id for each in shell.did(leases.WentBack)[0].setbacks] == list(range(SHARDS))
    assert shell.round() == ["ReadOwners", "Register", "Renew"]


def test_rows_older_than_their_claim_are_a_setback() -> None:
    """Their shard is not served: its memory would say that few generations were granted."""
    memory = StoreMemory(ME.replica_id)
    claims = [ShardClaim(0, 6, 27), ShardClaim(1, 2, 5)]

    memory.compare_images(zip(claims, [ShardImage(0, 14), ShardImage(1, 5)], strict=True))

    assert [each.shard_id for each in memory.setbacks] == [0]


def test_a_claim_after_a_failover_raises_the_floor_far() -> None:
    shell = Shell()
    shell.is_failover = True

    shell.round()

    assert shell.did(leases.RaiseFloors)[0].floors == {n: Floor(GENERATIONS_RAISED, 1) for n in range(SHARDS)}
    assert {owned.shard.generation_floor for owned in shell.leases.owned.values()} == {GENERATIONS_RAISED}


def test_an_owner_that_lost_nothing_in_a_failover_raises_nothing() -> None:
    """A write had an unknown outcome, so it has to claim the shard again; its lease still goes on."""
    shell = a_replica_with_all()
    shell.leases.remove(shell.leases.owned[1])
    shell.is_failover = True

    assert "RaiseFloors" not in shell.round()
    assert shell.leases.is_complete


def test_a_lease_that_was_over_in_a_failover_says_nothing() -> None:
    shell = a_replica_with_all()
    shell.now_ms += LEASE_MS
    shell.is_failover = True

    shell.round()

    assert sorted(shell.did(leases.RaiseFloors)[0].floors) == list(range(SHARDS))


def test_a_shard_handed_over_before_a_failover_has_a_far_floor() -> None:
    """The other replica's claim is lost, with all that it has granted."""
    shell = a_replica_with_all()
    shell.registered = [ME, PEER]
    shell.round()
    handed_over = [do.owned.shard_id for do in shell.did(leases.DropClosed)]
    shell.registered = [ME]
    shell.is_failover = True

    shell.round()

    assert handed_over
    assert sorted(shell.did(leases.RaiseFloors)[0].floors) == sorted(handed_over)


def test_a_renewal_that_shows_a_higher_floor_raises_generations() -> None:
    shell = a_replica_with_all()
    shell.floors[3] = Floor(70, 1)

    assert shell.round() == ["ReadOwners", "Register", "Renew", "RaiseGenerations"]
    assert shell.did(leases.RaiseGenerations)[0] == leases.RaiseGenerations(shell.leases.owned[3], 70)


def test_a_read_sent_before_the_setback_is_not_compared() -> None:
    shell = a_replica_with_all()
    memory = shell.known.memory
    asked = memory.ask()
    taken_back(shell, 2, last_seq=0)
    shell.round()

    shell.known.update(held_by(ME, 5_000, 2), shell.now_ms, asked=asked)

    assert memory.setbacks == []


def test_a_read_outside_of_a_round_begins_one() -> None:
    shell, nudges = a_replica_with_all(), []
    shell.known.on_setback = lambda: nudges.append(1)
    asked = shell.known.memory.ask()

    shell.known.update([ShardOwner(n, "r1", "", 1, 5_000) for n in range(SHARDS)], shell.now_ms, asked=asked)

    assert nudges == [1]


def test_what_was_lost_is_named_by_group_and_partition() -> None:
    owned = a_shard_with_a_member()
    decide(owned, 3, a_commit("m", 1), 300)

    facts = lost_facts(owned.shard, ShardImage(owned.shard_id))

    (group,) = owned.shard.groups.values()
    ((topic, partition),) = group.offsets
    offset = group.offsets[topic, partition].offset
    assert facts == [
        LostFact(*group.key, "generation", 1, 0),
        LostFact(*group.key, f"{topic}/{partition}", offset, -1),
    ]
    assert lost_facts(owned.shard, owned.shard.image()) == []


def test_an_owner_that_may_not_answer_raises_nothing() -> None:
    owned = a_shard()

    assert owned.raise_generations(9, at(LEASE_MS)) is NOTHING
    assert owned.shard.generation_floor == 0
    assert owned.raise_generations(9, at(1)) is not NOTHING
    assert owned.shard.generation_floor == 9
    assert owned.raise_generations(9, at(2)) is NOTHING


def test_a_member_whose_sync_a_floor_ends_is_seen_then() -> None:
    """Its session starts again, which the other replicas are to know."""
    owned = a_shard_with_a_member(seen=SeenMembers({}, None))
    decide(owned, 3, a_join(new="n", instance="j"), 300)
    decide(owned, 4, a_join("m", instance="i"), 300)
    decide(owned, 5, a_sync("n", 2, "j"), 300)
    commit(owned, 300)
    assert 5 in owned._waiting
    owned.shard.take_seen()

    owned.raise_generations(9, at(400))

    assert owned.shard.take_seen() == {(*KEY, "n"): at(400).wall_ms}
