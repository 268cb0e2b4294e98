"""Placement: each replica computes the same owners, none has more than its share, and little moves."""

from __future__ import annotations

import pytest

from rota.core.replica.leases import preferred_owners, shards_of

SHARDS = 64


def replicas(count: int) -> list[str]:
    return [f"r{number}" for number in range(count)]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7])
def test_no_replica_has_more_than_its_share(count: int) -> None:
    owners = preferred_owners(replicas(count), SHARDS)

    assert len(owners) == SHARDS
    assert max(owners.count(replica_id) for replica_id in replicas(count)) == -(-SHARDS // count)


def test_the_order_and_repetitions_of_the_list_do_not_matter() -> None:
    assert preferred_owners(["c", "a", "b", "a"], SHARDS) == preferred_owners(["a", "b", "c"], SHARDS)


def test_every_shard_is_due_to_one_replica() -> None:
    due = [shard_id for replica_id in replicas(3) for shard_id in shards_of(replica_id, replicas(3), SHARDS)]

    assert sorted(due) == list(range(SHARDS))


def test_a_replica_that_is_not_listed_yet_counts_itself() -> None:
    assert shards_of("r2", replicas(2), SHARDS) == shards_of("r2", replicas(3), SHARDS)
    assert shards_of("alone", [], 3) == [0, 1, 2]


def test_most_shards_stay_when_a_replica_comes() -> None:
    before, after = preferred_owners(replicas(4), SHARDS), preferred_owners(replicas(5), SHARDS)

    moved = [owner for owner, next_owner in zip(before, after, strict=True) if owner != next_owner]

    assert len(moved) <= SHARDS // 3


def test_replicas_of_two_releases_agree() -> None:
    """Two replicas that computed different owners would hand shards to and fro: these may not change unnoticed."""
    owners = ("r3", "r2", "r2", "r2", "r2", "r3", "r3", "r1", "r3", "r1", "r1", "r1")

    assert preferred_owners(["r1", "r2", "r3"], 12) == owners
