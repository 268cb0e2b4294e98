"""Appends that wait for a shard: what another transaction does to it meanwhile decides, for every shape of statement.

The snapshot of an append that waits is older than the row of `shards` that it finds in the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from rota.group.rows import RowChanges, ShardImage, TopicsRevisionRow
from rota.replica.ports import JournalEvent, ShardBatch, ShardClaim
from rota.storage import SqlStore, append_postgres
from rota.storage.schema import FENCE_GATE
from tests.contracts.builders import a_batch, a_group, a_member, a_topic, an_offset, claim_one, image_of
from tests.contracts.conftest import EVENTUALLY_S, SHARD_COUNT

BEFORE = RowChanges(
    groups=[a_group()],
    members=[a_member(f"m-{i}", position=i) for i in range(4)],
    offsets=[an_offset(i) for i in range(4)],
    topics=[a_topic(), a_topic("more")],
)
ONE_GROUP, ONE_MEMBER, ONE_OFFSET = [a_group(generation_id=4)], [a_member("m-9", position=9)], [an_offset(0, 8)]
A_SIDE_COMMIT = text(
    """
    INSERT INTO rota.side_commits (shard_id, namespace, group_id, topic, partition, member_id)
    VALUES (0, 'default', 'g', 'documents', 0, 'm-0') RETURNING id
    """
)
IN_LINE = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND NOT granted"
Found = tuple[ShardImage, list[JournalEvent]]
FORMER = [("default", "g", f"m-{i}") for i in range(3)]
CHANGES = {
    "line": RowChanges(),
    "group": RowChanges(groups=ONE_GROUP),
    "join": RowChanges(groups=ONE_GROUP, members=ONE_MEMBER),
    "leave": RowChanges(groups=ONE_GROUP, members_deleted=FORMER[:1]),
    "election": RowChanges(groups=ONE_GROUP, members=ONE_MEMBER, members_deleted=FORMER[:1]),
    "commit": RowChanges(offsets=ONE_OFFSET),
    "expiry": RowChanges(offsets_deleted=[("default", "g", "documents", 1)]),
    "topic": RowChanges(topics=[a_topic("new")], topics_revisions=[TopicsRevisionRow("default", 5)]),
    "topic_deleted": RowChanges(topics=[a_topic("more", 0, topic_id=5)]),
    "joins": RowChanges(groups=ONE_GROUP, members=[*ONE_MEMBER, a_member("m-8", position=8)]),
    "leaves": RowChanges(groups=ONE_GROUP, members_deleted=FORMER),
    "commits": RowChanges(offsets=[an_offset(0, 8), an_offset(7)]),
    "expiries": RowChanges(offsets_deleted=[("default", "g", "documents", i) for i in range(3)]),
}


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[SqlStore]:
    store = SqlStore(postgres_url)
    await store.open(SHARD_COUNT)
    await store.warm_up()
    yield store
    await store.close()


async def filled(store: SqlStore, shard_id: int = 0) -> ShardClaim:
    claim = await claim_one(store, shard_id)
    assert await store.append([a_batch(claim, rows=BEFORE)]) == []
    return replace(claim, last_seq=1)


async def found(store: SqlStore, shard_id: int) -> Found:
    """The shard's rows and lines, without its number and its epoch."""
    events = [replace(event, epoch=0) for event in await store.read_events(shard_id, 0, 100)]
    return replace(await image_of(store, shard_id), shard_id=0), events


async def found_without_a_wait(store: SqlStore, shard_id: int, rows: RowChanges) -> Found:
    claim = await filled(store, shard_id)
    assert await store.append([a_batch(claim, rows=rows)]) == []
    return await found(store, shard_id)


async def append_behind(store: SqlStore, connection: AsyncConnection, *batches: ShardBatch) -> asyncio.Task[list[int]]:
    """An append that waits for the connection's transaction."""
    append = asyncio.create_task(store.append(batches))
    async with asyncio.timeout(EVENTUALLY_S):
        while not await connection.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")):
            assert not append.done()
    return append


async def claim_in(store: SqlStore, connection: AsyncConnection, shard_id: int) -> None:
    known: dict[str, Any] = {"steal": True, "known_epochs": None}
    (claim,) = await store._leases.claim(connection, [shard_id], "r-2", "http://r-2", 60_000, **known)
    assert (claim.epoch, claim.former_replica_id) == (2, "r-1")


async def test_an_append_that_waits_for_a_claim_writes_nothing(store: SqlStore) -> None:
    for shard_id, (change, rows) in enumerate(CHANGES.items()):
        claim = await filled(store, shard_id)
        before = await found(store, shard_id)

        async with store._connections.writing() as connection:
            await claim_in(store, connection, shard_id)
            append = await append_behind(store, connection, a_batch(claim, rows=rows))

        assert await append == [shard_id], change
        assert await found(store, shard_id) == before, change


async def test_a_side_commit_is_taken_over_after_a_wait(store: SqlStore) -> None:
    """By the small statement: Postgres finds it also when it checks the shard's row again."""
    claim = await filled(store)
    async with store._connections.writing() as connection:
        taken = await connection.scalar(A_SIDE_COMMIT)
    async with store._connections.writing() as connection:
        await store._leases.renew(connection, [claim], "r-1", 60_000)
        rows = RowChanges(offsets=ONE_OFFSET, side_commits_taken=[taken])
        append = await append_behind(store, connection, a_batch(claim, rows=rows))

    assert await append == []
    assert await store.side_commits([0]) == []


async def test_a_change_of_a_group_waits_in_the_line_of_its_gate(store: SqlStore, postgres_url: str) -> None:
    """A later session waits behind it, so sessions that commit without a pause do not starve the owner."""
    first, later = await asyncpg.connect(postgres_url), await asyncpg.connect(postgres_url)
    for shard_id, (change, rows) in enumerate(CHANGES.items()):
        claim = await filled(store, shard_id)
        await first.execute("SELECT pg_advisory_lock_shared($1, $2)", FENCE_GATE, shard_id)
        append = asyncio.create_task(store.append([a_batch(claim, rows=rows)]))
        if rows.groups or rows.topics:
            while not await first.fetchval(IN_LINE):
                assert not append.done(), f"{change} has passed a gate that is held"
            assert not await later.fetchval("SELECT pg_try_advisory_lock_shared($1, $2)", FENCE_GATE, shard_id), change
        else:
            assert await append == [], change
        await first.execute("SELECT pg_advisory_unlock_all()")
        assert await append == [], change
    await first.close()
    await later.close()


async def test_an_append_that_waits_for_a_renewal_lands_whole(store: SqlStore) -> None:
    for shard_id, (change, rows) in enumerate(CHANGES.items()):
        expected = await found_without_a_wait(store, len(CHANGES) + shard_id, rows)
        claim = await filled(store, shard_id)

        async with store._connections.writing() as connection:
            await store._leases.renew(connection, [claim], "r-1", 60_000)
            append = await append_behind(store, connection, a_batch(claim, rows=rows))

        assert await append == [], change
        assert await found(store, shard_id) == expected, change


async def test_an_append_that_is_sent_twice_lands_once(store: SqlStore) -> None:
    """The first one may have been given up by its sender, and still be under way."""
    for shard_id, (change, rows) in enumerate(CHANGES.items()):
        expected = await found_without_a_wait(store, len(CHANGES) + shard_id, rows)
        claim = await filled(store, shard_id)
        batch = a_batch(claim, rows=rows)

        async with store._connections.writing() as connection:
            await store._connections.appender.append(connection, [batch])
            append = await append_behind(store, connection, batch)

        assert await append == [shard_id], change
        assert await found(store, shard_id) == expected, change


@pytest.mark.parametrize("claimed", [0, 1])
async def test_of_two_shards_the_one_that_was_claimed_is_refused(store: SqlStore, claimed: int) -> None:
    claims = [await filled(store), await filled(store, 1)]
    before = await found(store, claimed)
    batches = [a_batch(claim, rows=CHANGES["election"]) for claim in claims]

    async with store._connections.writing() as connection:
        await claim_in(store, connection, claimed)
        append = await append_behind(store, connection, *batches)

    assert await append == [claimed]
    assert await found(store, claimed) == before
    assert (await image_of(store, 1 - claimed)).last_seq == 2


async def test_the_changes_here_are_of_all_usual_shapes(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    claims = [await filled(store), await filled(store, 1)]
    used, statement = set(), append_postgres._statement

    def noted(shape: append_postgres.Shape, is_small: bool) -> Any:
        used.add((shape, is_small))
        return statement(shape, is_small)

    monkeypatch.setattr(append_postgres, "_statement", noted)
    for rows in CHANGES.values():
        await store.append([a_batch(claims[0], rows=rows)])
    await store.append([a_batch(claim) for claim in claims])

    assert used >= set(append_postgres._USUAL)
