"""The contract of `ShardStore`: the owner of a shard, for how long, and as of which epoch."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from rota.core.group.rows import ShardImage
from rota.core.replica.ports import Floor, Replica, ShardClaim, ShardStore
from tests.contracts.builders import (
    A_MINUTE_MS,
    a_batch,
    claim_one,
    image_of,
)
from tests.contracts.conftest import SHARD_COUNT, Backing


async def test_a_new_store_has_no_owners_and_empty_shards(store: ShardStore) -> None:
    assert await store.owners() == []
    assert await image_of(store, 3) == ShardImage(3)
    assert await store.read_events(3, 0, 10) == []


async def test_a_shards_first_claim_has_epoch_one_and_no_journal(store: ShardStore) -> None:
    claims = await store.claim([5, 2], "r-1", "http://one", A_MINUTE_MS)

    assert claims == [ShardClaim(2, 1, 0), ShardClaim(5, 1, 0)]


async def test_owners_lists_claimed_shards_with_their_lease_time(store: ShardStore) -> None:
    await store.claim([1, 4], "r-1", "http://one", A_MINUTE_MS)

    owners = await store.owners()

    assert [(o.shard_id, o.replica_id, o.address, o.epoch, o.last_seq) for o in owners] == [
        (1, "r-1", "http://one", 1, 0),
        (4, "r-1", "http://one", 1, 0),
    ]
    assert all(A_MINUTE_MS - 10_000 < o.lease_left_ms <= A_MINUTE_MS for o in owners)


async def test_replicas_are_listed_and_name_their_peers_until_they_deregister(store: ShardStore) -> None:
    one = Replica("r-1", "http://r-1", "http://peer-1", "grpc-1", 1, 2)
    two, over = Replica("r-2", "http://r-2"), Replica("r-3", "http://r-3")
    moved = replace(one, peer_address="http://peer-9")
    await store.raise_floors({0: Floor(5, 0), 1: Floor(0, 0)})
    await claim_one(store, 0, "r-1")

    assert await store.register(over, 0) == []
    assert await store.register(one, A_MINUTE_MS) == [one]
    assert await store.register(two, A_MINUTE_MS) == [one, two]
    assert await store.register(moved, A_MINUTE_MS) == [moved, two]
    owner, unclaimed = await store.owners()
    await store.deregister("r-2")
    assert await store.register(moved, A_MINUTE_MS) == [moved]

    known = replace(owner, reported_by="", claimed_seq=0, generation_floor=5, peer_address="http://peer-9")
    assert (owner, owner.lease_until_ms > 0) == (known, True)
    assert (unclaimed.peer_address, unclaimed.generation_floor) == ("", 0)


async def test_a_shard_under_lease_is_not_given_to_another_replica(store: ShardStore) -> None:
    await claim_one(store, 1, "r-1")

    claims = await store.claim([1, 2], "r-2", "http://two", A_MINUTE_MS)

    assert claims == [ShardClaim(2, 1, 0)]
    assert [(o.shard_id, o.replica_id) for o in await store.owners()] == [(1, "r-1"), (2, "r-2")]


async def test_a_replica_that_claims_its_shard_again_has_a_new_epoch(store: ShardStore) -> None:
    first = await claim_one(store)

    again = await claim_one(store)

    assert again.epoch == first.epoch + 1


async def test_an_ended_lease_admits_another_replica_with_a_new_epoch(store: ShardStore, backing: Backing) -> None:
    (old,) = await store.claim([0], "r-1", "http://one", backing.lease_ms)
    await backing.until_over(store, old)

    new = await claim_one(store, 0, "r-2")

    assert new.epoch == old.epoch + 1
    assert await store.renew([old], "r-1", A_MINUTE_MS) == []


async def test_an_ended_lease_can_be_renewed_while_no_claim_followed(store: ShardStore, backing: Backing) -> None:
    (claim,) = await store.claim([0], "r-1", "http://one", backing.lease_ms)
    await backing.until_over(store, claim)

    assert [each.shard_id for each in await store.renew([claim], "r-1", A_MINUTE_MS)] == [0]
    assert await store.claim([0], "r-2", "http://two", A_MINUTE_MS) == []


async def test_steal_takes_a_shard_whatever_its_lease_says(store: ShardStore) -> None:
    old = await claim_one(store, 0, "r-1")

    new = await claim_one(store, 0, "r-2", steal=True)

    assert new.epoch == old.epoch + 1


async def test_renewals_extend_own_leases_at_the_claims_epoch_only(store: ShardStore) -> None:
    claims = await store.claim([0, 1, 2, 3], "r-1", "http://one", 20_000)
    await claim_one(store, 1, "r-1")
    await claim_one(store, 2, "r-2", steal=True)

    assert [each.shard_id for each in await store.renew(claims, "r-1", 600_000)] == [0, 3]
    lefts = {owner.shard_id: owner.lease_left_ms for owner in await store.owners()}
    assert min(lefts[0], lefts[3]) > A_MINUTE_MS >= max(lefts[1], lefts[2])


async def test_renewing_in_another_replicas_name_does_nothing(store: ShardStore) -> None:
    claim = await claim_one(store, 0, "r-1")

    assert await store.renew([claim], "r-2", A_MINUTE_MS) == []


async def test_a_claim_takes_no_lease_begun_since_owners_were_read(store: ShardStore) -> None:
    await store.claim([0, 1], "r-1", "http://one", 0)
    await store.claim([0], "r-2", "http://two", 0)

    taken = await store.claim([0, 1, 2], "r-3", "http://three", 0, known_epochs={0: 1, 1: 1})

    assert [claim.shard_id for claim in taken] == [1, 2]
    again = await store.claim([0], "r-2", "http://two", 0, known_epochs={})
    assert [claim.shard_id for claim in again] == [0]


async def test_an_append_of_another_replica_at_this_epoch_is_rejected(store: ShardStore) -> None:
    """Where the store went back, two replicas may have been given one epoch."""
    claim = await claim_one(store, 0, "r-1")
    batch = a_batch(claim)

    assert await store.append([replace(batch, replica_id="r-2")]) == [0]
    assert await store.append([replace(batch, replica_id="r-1")]) == []


async def test_a_shard_that_has_lost_lines_is_not_confirmed(store: ShardStore) -> None:
    claim = await claim_one(store, 0, "r-1")

    assert await store.confirm([replace(claim, last_seq=1)], "r-1") == []


async def test_a_shard_is_confirmed_to_its_last_claimant_alone(store: ShardStore) -> None:
    old = await store.claim([0, 1], "r-1", "http://one", A_MINUTE_MS)
    new = await claim_one(store, 0, "r-1")

    assert await store.confirm(old, "r-1") == [1]
    assert await store.confirm([new, old[1]], "r-1") == [0, 1]
    assert await store.confirm([new], "r-2") == []
    assert await store.confirm([], "r-1") == []


async def test_a_released_shard_is_free_at_once(store: ShardStore) -> None:
    claims = await store.claim([0, 1], "r-1", "http://one", A_MINUTE_MS)

    await store.release(claims[:1], "r-1")

    assert await store.claim([0, 1], "r-2", "http://two", A_MINUTE_MS) == [ShardClaim(0, 2, 0)]


async def test_a_renewal_after_the_release_keeps_no_shard(store: ShardStore) -> None:
    claims = await store.claim([0, 1], "r-1", "http://one", A_MINUTE_MS)
    await store.release(claims[:1], "r-1")

    assert [each.shard_id for each in await store.renew(claims, "r-1", A_MINUTE_MS)] == [1]
    assert await store.claim([0, 1], "r-2", "http://two", A_MINUTE_MS) == [ShardClaim(0, 2, 0)]


async def test_releasing_a_shard_claimed_again_since_does_nothing(store: ShardStore) -> None:
    old = await claim_one(store)
    await claim_one(store)

    await store.release([old], "r-1")

    assert await store.claim([0], "r-2", "http://two", A_MINUTE_MS) == []


async def test_of_many_replicas_that_claim_one_gets_each_shard(store: ShardStore) -> None:
    shard_ids = list(range(SHARD_COUNT))

    claims = await asyncio.gather(*(store.claim(shard_ids, f"r-{n}", "http://any", A_MINUTE_MS) for n in range(6)))

    assert sorted(claim.shard_id for taken in claims for claim in taken) == shard_ids
    assert {claim.epoch for taken in claims for claim in taken} == {1}
