"""What a replica remembers of its store, statement by statement: epochs, floors, and the shards that it dropped."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from rota.core.group.rows import ShardImage
from rota.core.replica.going_back import MOST_LOST_FACTS, Known, Setback, StoreMemory
from rota.core.replica.ports import EPOCHS_SKIPPED, Floor, Renewal, ShardClaim, ShardOwner
from rota.protocol.limits import GENERATIONS_RAISED
from rota.protocol.messages import OffsetToCommit
from tests.unit.group.driver import a_commit
from tests.unit.replica.shards import EPOCH, LEASE_ENDS, a_shard_with_a_member, decide

ME, OTHER = "r", "other"


def a_row(**changes: object) -> ShardOwner:
    """Another replica owns shard 0, whose journal ends at 20; its epoch began at 10."""
    row = ShardOwner(0, OTHER, "", 7, 5_000, last_seq=20, claimed_seq=10, generation_floor=3)
    return replace(row, **changes)  # type: ignore[arg-type]


def a_memory(*rows: ShardOwner) -> StoreMemory:
    memory = StoreMemory(ME)
    memory.compare_owners(rows or [a_row()], memory.ask())
    assert memory.setbacks == []
    return memory


def a_memory_of_a_dropped_shard() -> StoreMemory:
    """This replica served shard 0, with a group in generation 1; its lease goes on."""
    memory, owned = StoreMemory(ME), a_shard_with_a_member()
    memory.note_dropped(owned)
    return memory


def a_claim(**changes: object) -> ShardClaim:
    """The claim after the drop, in a failover: all lines of the dropped shard are there."""
    claim = ShardClaim(
        0, EPOCH + 1, 20, generation_floor=0, former_epoch=EPOCH, former_replica_id=ME, is_other_timeline=True
    )
    return replace(claim, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_restored", [False, True])
def test_a_setback_has_the_row_that_shows_it(is_restored: bool) -> None:
    memory = a_memory(a_row(incarnation="one"))
    found = a_row(last_seq=19, generation_floor=5, incarnation="two" if is_restored else "one")

    memory.compare_owners([found], memory.ask())

    known = Known(7, OTHER, 20)
    assert memory.setbacks == [Setback(0, known, known._replace(last_seq=19), 5, is_restored)]


def test_each_time_that_the_store_went_back_is_counted_once() -> None:
    memory = a_memory(a_row(), a_row(shard_id=1))
    counts = [memory.ask().times_back]
    for last_seq in (19, 18):
        memory.compare_owners([a_row(last_seq=last_seq), a_row(shard_id=1, last_seq=last_seq)], memory.ask())
        memory.take_setbacks(0)
        counts.append(memory.ask().times_back)

    assert counts == [0, 1, 2]


@pytest.mark.parametrize(
    ("changes", "now_ms", "unsure"),
    [
        ({}, LEASE_ENDS.monotonic_ms - 1, False),
        ({}, LEASE_ENDS.monotonic_ms, True),
        ({"is_other_timeline": False}, LEASE_ENDS.monotonic_ms, False),
        ({"former_epoch": EPOCH + 1}, 0, True),
        ({"former_replica_id": OTHER}, 0, True),
        ({"last_seq": 0}, 0, True),
    ],
)
def test_a_claim_after_a_failover_trusts_its_own_lease_alone(
    changes: dict[str, object], now_ms: int, unsure: bool
) -> None:
    assert a_memory_of_a_dropped_shard().is_unsure(a_claim(**changes), now_ms) is unsure


def test_a_released_shard_may_have_been_anothers_at_once() -> None:
    memory = a_memory_of_a_dropped_shard()
    memory.note_released(0)

    assert memory.is_unsure(a_claim(), 0)


def test_a_floor_that_this_replica_raised_makes_a_claim_sure() -> None:
    memory = StoreMemory(ME)
    memory.note_floors({0: Floor(50, 9)})

    assert not memory.is_unsure(a_claim(generation_floor=50), 0)
    assert memory.is_unsure(a_claim(generation_floor=49), 0)


def test_unknown_generations_are_unsure_until_a_floor() -> None:
    memory = a_memory()
    memory.compare_owners([a_row(last_seq=19, generation_floor=0)], memory.ask())
    memory.take_setbacks(0)
    calm = a_claim(is_other_timeline=False)

    assert memory.floors == {0: Floor(0, 7 + EPOCHS_SKIPPED)}
    assert memory.is_unsure(calm, 0)
    assert not memory.is_unsure(replace(calm, generation_floor=1), 0)
    assert not memory.is_unsure(replace(calm, shard_id=1), 0)


def test_generations_that_an_administrator_has_raised_are_sure() -> None:
    """`rota db restored` has raised the floors, and has begun a new incarnation of the journal."""
    memory = a_memory(a_row(incarnation="one"))
    memory.compare_owners([a_row(last_seq=19, incarnation="two")], memory.ask())
    memory.take_setbacks(0)

    assert not memory.is_unsure(a_claim(generation_floor=3, is_other_timeline=False), 0)


@pytest.mark.parametrize("answer", ["owners", "claims", "renewals"])
def test_an_answer_to_an_earlier_statement_is_no_second_setback(answer: str) -> None:
    """It was under way when the setback was found."""
    memory, found = a_memory(), a_row(last_seq=19)
    asked = memory.ask()
    memory.compare_owners([found], asked)
    memory.take_setbacks(0)

    match answer:
        case "owners":
            memory.compare_owners([found], asked)
        case "claims":
            memory.compare_claims([ShardClaim(0, 8, 19, former_epoch=7, former_replica_id=OTHER)], asked)
        case _:
            memory.compare_renewals([Renewal(0, 19, 0)], asked)

    assert memory.setbacks == []


@pytest.mark.parametrize(
    ("stored", "claimed", "read", "highest"), [(9, 4, 3, 9), (2, 8, 3, 8), (2, 2, 7, 7), (0, 0, 0, 0)]
)
def test_a_far_floor_is_above_all_that_is_known(stored: int, claimed: int, read: int, highest: int) -> None:
    memory = a_memory(a_row(generation_floor=read))
    image = a_shard_with_a_member().shard.image()
    image = replace(image, groups=(replace(image.groups[0], generation_id=stored),))

    floor = memory.far_floor(a_claim(generation_floor=claimed), image)

    assert floor == Floor(highest + GENERATIONS_RAISED, EPOCH + 1)


def test_a_far_floor_is_above_a_floor_that_the_store_has_lost() -> None:
    memory = StoreMemory(ME)
    memory.note_floors({0: Floor(60, 9)})
    memory.note_floors({0: Floor(40, 9), 1: Floor(0, 9)})

    assert memory.far_floor(a_claim(), ShardImage(0)).generation_id == 60 + GENERATIONS_RAISED
    assert memory.far_floor(a_claim(shard_id=1), ShardImage(1)).generation_id == GENERATIONS_RAISED


def test_of_two_setbacks_the_higher_floor_counts() -> None:
    memory = a_memory_of_a_dropped_shard()
    known = Known(EPOCH, ME, 20)
    memory.setbacks = [Setback(0, known, known, 0), Setback(0, Known(EPOCH - 1, ME, 20), known, 0)]
    memory.take_setbacks(0)

    assert memory.floors == {0: Floor(2, EPOCH + EPOCHS_SKIPPED)}


def test_facts_that_are_known_to_be_stored_are_not_compared() -> None:
    memory = a_memory_of_a_dropped_shard()
    [last_seq] = [known.last_seq for known in memory.ask().known.values()]
    mine = ShardOwner(0, ME, "", EPOCH, 5_000, last_seq=last_seq, claimed_seq=0)
    memory.compare_owners([mine], memory.ask())
    memory.compare_owners([replace(mine, last_seq=0)], memory.ask())
    memory.take_setbacks(0)

    assert memory.to_compare == {}


def test_lost_facts_of_all_shards_are_named_and_some_are_kept() -> None:
    memory = StoreMemory(ME)
    for shard_id in (0, 1):
        owned = a_shard_with_a_member()
        offsets = tuple(OffsetToCommit("t", number, 5) for number in range(MOST_LOST_FACTS))
        decide(owned, 3, structs.replace(a_commit("m", 1), offsets=offsets), 300)
        memory.to_compare[shard_id] = owned.shard

    facts = memory.compare_rows([ShardImage(0), ShardImage(1)])

    assert len(facts) == 2 * (1 + MOST_LOST_FACTS)
    kept = [facts for groups in memory.lost.values() for facts in groups.values()]
    assert [len(facts) for facts in kept] == [MOST_LOST_FACTS] * 2
    assert kept[0][:2] == (("generation", 1, 0), ("t/0", 5, -1))


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(Known(EPOCH, OTHER, 20), id="the epoch is another's"),
        pytest.param(Known(EPOCH + 1, OTHER, 20), id="a later epoch began too early"),
    ],
)
def test_a_setback_that_is_read_again_leaves_its_facts(found: Known) -> None:
    """The read of a waiting call shows it first, then that of the round which the first one has begun."""
    memory = a_memory_of_a_dropped_shard()
    row = ShardOwner(0, found.replica_id, "", found.epoch, 5_000, last_seq=found.last_seq, claimed_seq=0)
    for _ in range(2):
        memory.compare_owners([row], memory.ask())
    memory.take_setbacks(0)

    assert memory.to_compare.keys() == {0}
