"""The contract of `ShardStore`: what shows that it went back to an earlier state, and what never repeats then."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from rota.core.group.rows import RowChanges
from rota.core.replica.ports import EPOCHS_SKIPPED, RELEASED, Floor, Renewal, ShardStore
from rota.storage.store import SqlStore
from tests.contracts.builders import A_MINUTE_MS, a_batch, a_group, an_offset, claim_one
from tests.contracts.conftest import MemoryBacking
from tests.support.postgres import PostgresServer


async def test_renewals_say_where_the_journal_ends_and_the_floor(store: ShardStore) -> None:
    claim = await claim_one(store)
    await store.append([a_batch(claim)])
    await store.raise_floors({claim.shard_id: Floor(12, 3)})

    (renewal,) = await store.renew([claim], "r-1", A_MINUTE_MS)

    assert renewal == Renewal(claim.shard_id, 1, 12)


async def test_a_read_of_the_owners_says_where_each_epoch_began(store: ShardStore) -> None:
    claim = await claim_one(store)
    await store.append([a_batch(claim)])
    again = await claim_one(store)
    await store.append([a_batch(again, after=1)])

    (owner,) = await store.owners()

    assert (owner.epoch, owner.claimed_seq, owner.last_seq) == (again.epoch, 1, 2)


async def test_a_read_of_the_owners_names_the_journals_incarnation(store: ShardStore) -> None:
    await claim_one(store)

    (owner,) = await store.owners()

    assert owner.incarnation
    assert owner.incarnation == store.incarnation  # type: ignore[attr-defined]


async def test_a_claim_names_the_former_owner_and_its_epoch(store: ShardStore) -> None:
    first = await claim_one(store, 1, "r-1")
    await store.release([first], "r-1")

    (taken,) = await store.claim([1], "r-2", "http://two", A_MINUTE_MS)

    assert (first.former_epoch, first.former_replica_id) == (0, "")
    assert (taken.former_epoch, taken.former_replica_id, taken.is_other_timeline) == (first.epoch, "r-1", False)


async def test_a_claim_passes_the_epochs_that_its_replica_knows(store: ShardStore) -> None:
    known = {0: 7, 1: 41}
    await claim_one(store, 1, "r-1")

    first, second = await store.claim([0, 1], "r-1", "http://one", A_MINUTE_MS, known_epochs=known)

    assert (first.epoch, second.epoch) == (8, 42)
    assert {owner.claimed_seq for owner in await store.owners()} == {0}
    assert [each.epoch for each in await store.claim([0, 1], "r-1", "http://one", 1, known_epochs={0: 3})] == [9, 43]


async def test_a_claim_passes_the_floor_of_the_epochs(store: ShardStore) -> None:
    await claim_one(store, 1)

    await store.raise_floors({1: Floor(5, 30)})
    (claim,) = await store.claim([1], "r-1", "http://one", A_MINUTE_MS)

    assert (claim.epoch, claim.generation_floor) == (31, 5)


async def test_a_floor_never_falls(store: ShardStore) -> None:
    await claim_one(store, 1)

    await store.raise_floors({1: Floor(5, 30), 2: Floor(2, 2)})
    await store.raise_floors({1: Floor(4, 40), 2: Floor(9, 1)})
    one, two = await store.claim([1, 2], "r-1", "http://one", A_MINUTE_MS)

    assert (one.generation_floor, one.epoch) == (5, 41)
    assert (two.generation_floor, two.epoch) == (9, 3)


async def test_a_floor_leaves_the_owner_its_lease(store: ShardStore) -> None:
    claim = await claim_one(store)

    await store.raise_floors({claim.shard_id: Floor(5, 30)})

    assert await store.append([a_batch(claim)]) == []
    assert await store.renew([claim], "r-1", A_MINUTE_MS) == [Renewal(claim.shard_id, 1, 5)]
    assert await store.claim([claim.shard_id], "r-2", "http://two", A_MINUTE_MS) == []


async def test_a_floor_is_kept_for_a_shard_that_was_never_claimed(store: ShardStore) -> None:
    await store.raise_floors({3: Floor(5, 30)})

    (unclaimed,) = await store.owners()
    (claim,) = await store.claim([3], "r-1", "http://one", A_MINUTE_MS)

    assert (unclaimed.shard_id, unclaimed.replica_id, unclaimed.epoch) == (3, "", 0)
    assert (unclaimed.address, unclaimed.lease_until_ms) == ("", RELEASED)
    assert (claim.epoch, claim.last_seq, claim.generation_floor) == (31, 0, 5)


async def test_an_append_that_takes_over_a_lost_side_commit_is_refused() -> None:
    backing = MemoryBacking()
    store = backing.new_store()
    await store.open(2)

    async def commit(shard_id: int, partition: int) -> None:
        backing.tables.commit_beside(shard_id, an_offset(partition), "m-1")

    async def lose(side_id: int) -> None:
        del backing.tables._shards[0].side_commits[side_id]

    await _check_lost_side_commit(store, commit, lose)


async def test_postgres_refuses_to_take_over_a_lost_side_commit(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    database = postgres_url.rpartition("/")[2]
    store = SqlStore(postgres_url)
    await store.open(2)

    async def commit(shard_id: int, partition: int) -> None:
        columns = "shard_id, namespace, group_id, topic, partition, member_id"
        values = f"{shard_id}, 'default', 'g', 'documents', {partition}, 'm-1'"
        postgres_server.execute(f"INSERT INTO rota.side_commits ({columns}) VALUES ({values})", database=database)

    async def lose(side_id: int) -> None:
        assert {side.row for side in await store.side_commits([0, 1])} == {None}, "the rows of offsets are not written"
        postgres_server.execute(f"DELETE FROM rota.side_commits WHERE id = {side_id}", database=database)

    await _check_lost_side_commit(store, commit, lose)
    row = an_offset(5, leader_epoch=None)
    await store.append([a_batch(await claim_one(store), rows=RowChanges(offsets=[row]))])
    await commit(0, 5)
    assert [side.row for side in await store.side_commits([0])] == [row]
    await store.close()


async def _check_lost_side_commit(
    store: ShardStore, commit: Callable[[int, int], Awaitable[None]], lose: Callable[[int], Awaitable[None]]
) -> None:
    """Of one shard one of two side commits is lost, of the other none."""
    claims = [await claim_one(store, 0), await claim_one(store, 1)]
    for shard_id, partition in ((0, 0), (0, 1), (1, 2)):
        await commit(shard_id, partition)
    taken = {side.partition: side.side_id for side in await store.side_commits([0, 1])}
    await lose(taken[1])
    one = RowChanges(groups=[a_group()], side_commits_taken=[taken[0], taken[1]])
    other = RowChanges(groups=[a_group()], side_commits_taken=[taken[2]])

    refused = await store.append([a_batch(claims[0], rows=one), a_batch(claims[1], rows=other)])

    images = await store.load([0, 1])
    assert refused == [0]
    assert [(image.last_seq, len(image.groups)) for image in images] == [(0, 0), (1, 1)]
    assert [side.side_id for side in await store.side_commits([0, 1])] == [taken[0]]
    assert await store.append([a_batch(claims[0], rows=RowChanges(side_commits_taken=[taken[0]]))]) == []


async def test_claims_of_another_timeline_say_so_until_a_renewal() -> None:
    backing = MemoryBacking()
    backing.tables.timeline = "one"
    store = backing.new_store()
    await store.open(1)
    claim = await claim_one(store)
    await store.renew([claim], "r-1", A_MINUTE_MS)

    backing.tables.timeline = "two"
    first, second = await claim_one(store), await claim_one(store)
    await store.renew([second], "r-1", A_MINUTE_MS)
    third = await claim_one(store)

    assert [each.is_other_timeline for each in (claim, first, second, third)] == [False, True, True, False]
    assert first.epoch == claim.epoch + 1 + EPOCHS_SKIPPED
    assert third.epoch == second.epoch + 1


async def test_claims_of_another_timeline_are_named_until_a_renewal(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    database = postgres_url.rpartition("/")[2]
    store = SqlStore(postgres_url)
    await store.open(1)
    claim = await claim_one(store)
    await store.renew([claim], "r-1", A_MINUTE_MS)

    # What a failover leaves in the row: the timeline of the server before.
    postgres_server.execute("UPDATE rota.shards SET timeline = 'another'", database=database)
    first, second = await claim_one(store), await claim_one(store)
    await store.renew([second], "r-1", A_MINUTE_MS)
    third = await claim_one(store)
    postgres_server.execute("UPDATE rota.shards SET timeline = NULL", database=database)
    await claim_one(store)
    await store.close()

    assert postgres_server.execute("SELECT timeline = rota.timeline() FROM rota.shards", database=database) == "t"
    assert [each.is_other_timeline for each in (claim, first, second, third)] == [False, True, True, False]
    assert (first.epoch, third.epoch) == (claim.epoch + 1 + EPOCHS_SKIPPED, second.epoch + 1)


async def test_a_renewal_of_a_lease_that_is_over_shows_no_timeline() -> None:
    """Another replica may have had the shard since, in lines that the store has lost."""
    backing = MemoryBacking()
    backing.tables.timeline = "one"
    store = backing.new_store()
    await store.open(1)
    (claim,) = await store.claim([0], "r-1", "http://one", 0)

    backing.tables.timeline = "two"
    await store.renew([claim], "r-1", A_MINUTE_MS)

    assert (await claim_one(store)).is_other_timeline


async def test_postgres_shows_a_plain_role_its_timeline(postgres_server: PostgresServer, postgres_url: str) -> None:
    database = postgres_url.rpartition("/")[2]
    role = f"reader_{database}"
    postgres_server.execute(f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA rota TO {role}", database=database)

    shown = postgres_server.execute(f"SET ROLE {role}; SELECT rota.timeline()", database=database).splitlines()[-1]
    postgres_server.execute(f"DROP OWNED BY {role}; DROP ROLE {role}", database=database)

    system, timeline, oid = shown.split("/")
    assert (int(system) > 0, timeline, int(oid) > 0) == (True, "00000001", True)
