"""Which replica should own which shard."""

from __future__ import annotations

from collections import Counter

import pytest

from rota.replica.leases import preferred_owners, shards_of

SHARDS = 64
REPLICAS = tuple(f"replica-{number}" for number in range(7))


@pytest.mark.parametrize("count", range(1, len(REPLICAS) + 1))
def test_nobody_should_own_more_than_its_share(count: int) -> None:
    owned = Counter(preferred_owners(REPLICAS[:count], SHARDS))
    assert set(owned) == set(REPLICAS[:count])
    assert max(owned.values()) == -(-SHARDS // count)


def test_every_replica_finds_the_same_in_any_order() -> None:
    owners = preferred_owners(REPLICAS, SHARDS)
    assert preferred_owners(reversed(REPLICAS), SHARDS) == owners
    for name in REPLICAS:
        assert shards_of(name, REPLICAS, SHARDS) == [shard for shard, owner in enumerate(owners) if owner == name]


def test_a_replica_that_is_not_registered_yet_counts_itself() -> None:
    assert shards_of("replica-6", REPLICAS[:6], SHARDS) == shards_of("replica-6", REPLICAS, SHARDS)


@pytest.mark.parametrize("count", range(2, len(REPLICAS) + 1))
def test_when_one_goes_little_moves_but_what_it_had(count: int) -> None:
    before, after = preferred_owners(REPLICAS[:count], SHARDS), preferred_owners(REPLICAS[: count - 1], SHARDS)
    moved = [shard for shard in range(SHARDS) if before[shard] != after[shard]]
    had = [shard for shard in moved if before[shard] == REPLICAS[count - 1]]
    assert len(moved) - len(had) <= SHARDS // 8
