"""Generated races on Postgres: appends that wait for another transaction end as in memory, where none waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from rota.group.rows import ShardImage
from rota.replica.ports import JournalEvent, ShardBatch
from rota.storage import SqlStore
from rota.testing.memory import MemoryStore
from tests.contracts.builders import A_MINUTE_MS, a_batch, an_offset, image_of
from tests.contracts.conftest import EVENTUALLY_S, SHARD_COUNT
from tests.contracts.test_append_races import BEFORE, CHANGES

SHARDS = (0, 1)
STEPS = 6
A_SIDE_COMMIT = text(
    """
    WITH written AS (
        INSERT INTO rota.offsets (
            shard_id, namespace, group_id, topic, partition, "offset", leader_epoch, metadata, committed_at_ms, topic_id
        ) VALUES (:shard_id, 'default', 'g', 'documents', 0, :offset, 4, 'checked by hand', :at_ms, 0)
        ON CONFLICT (shard_id, namespace, group_id, topic, partition) DO UPDATE SET "offset" = excluded."offset"
    )
    INSERT INTO rota.side_commits (shard_id, namespace, group_id, topic, partition, member_id)
    VALUES (:shard_id, 'default', 'g', 'documents', 0, 'm-0')
    """
)
WAITING = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
State = tuple[list[ShardImage], list[list[JournalEvent]], list[list[tuple[int, int]]]]


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[SqlStore]:
    store = SqlStore(postgres_url)
    await store.open(SHARD_COUNT)
    yield store
    await store.close()


class Race:
    """Runs the same steps on Postgres concurrently, and in memory one after the other."""

    def __init__(self, store: SqlStore, seed: int) -> None:
        self.store, self.twin = store, MemoryStore(lambda: 0)
        self.chance = Random(seed)
        self.claims = dict[int, Any]()

    async def begin(self) -> None:
        await self.twin.open(SHARD_COUNT)
        await self.claim("r-1")
        batches = [a_batch(self.claims[shard_id], rows=BEFORE) for shard_id in SHARDS]
        assert (await self.store.append(batches), await self.twin.append(batches)) == ([], [])
        await self.claim("r-1")

    async def claim(self, replica_id: str) -> None:
        """Each shard belongs to this replica, in both."""
        arguments = (SHARDS, replica_id, "", A_MINUTE_MS)
        claims, of_twin = [await each.claim(*arguments, steal=True) for each in (self.store, self.twin)]
        assert [(each.epoch, each.last_seq) for each in claims] == [(each.epoch, each.last_seq) for each in of_twin]
        self.claims = {each.shard_id: each for each in claims}

    async def step(self) -> str:
        """Another transaction is under way when an append is sent, and is committed behind it. Returns what met."""
        for _ in range(self.chance.choice([0, 0, 1, 2])):
            await self.commit_beside(self.chance.choice(SHARDS), self.chance.randrange(100))
        batches = [await self.a_batch(shard_id) for shard_id in self.chance.choice([(0,), (1,), SHARDS])]
        other = self.chance.choice(["renewal", "claim", "the same append", "nothing"])
        async with self.store._connections.writing() as connection:
            await self.interfere(connection, other, batches)
            append = asyncio.create_task(self.store.append(batches))
            async with asyncio.timeout(EVENTUALLY_S):
                while not append.done() and not await connection.scalar(WAITING):
                    continue  # each look waits for the server
        refused = await append

        if other == "claim":
            await self.twin.claim([batches[0].shard_id], "r-2", "", A_MINUTE_MS, steal=True)
        if other == "the same append":
            await self.twin.append(batches)
        assert sorted(refused) == sorted(await self.twin.append(batches)), other
        await self.claim("r-1")
        return f"{other} and {'refused' if refused else 'written'}"

    async def interfere(self, connection: AsyncConnection, other: str, batches: Sequence[ShardBatch]) -> None:
        first = batches[0].shard_id
        match other:
            case "renewal":
                await self.store._leases.renew(connection, [self.claims[first]], "r-1", A_MINUTE_MS)
            case "claim":
                known: dict[str, Any] = {"steal": True, "known_epochs": None}
                await self.store._leases.claim(connection, [first], "r-2", "", A_MINUTE_MS, **known)
            case "the same append":
                await self.store._connections.appender.append(connection, batches)

    async def a_batch(self, shard_id: int) -> ShardBatch:
        """Rows of one kind, side commits that the owner knows of; at times with an epoch or a place of before."""
        rows = replace(CHANGES[self.chance.choice(sorted(CHANGES))])
        known = [side.side_id for side in await self.store.side_commits([shard_id])]
        if known and self.chance.random() < 0.7:
            taken = known[: self.chance.randint(1, len(known))]
            rows = replace(rows, side_commits_taken=taken, offsets=[an_offset(0, 50)], offsets_deleted=[])
        claim = self.claims[shard_id]
        after = claim.last_seq + self.chance.choice([0, 0, 0, 0, 1, -1])
        return replace(a_batch(claim, after=after, rows=rows), epoch=claim.epoch - self.chance.choice([0, 0, 0, 0, 1]))

    async def commit_beside(self, shard_id: int, offset: int) -> None:
        row = an_offset(0, offset)
        async with self.store._connections.writing() as connection:
            values = {"shard_id": shard_id, "offset": offset, "at_ms": row.committed_at_ms}
            await connection.execute(A_SIDE_COMMIT, values)
        self.twin.tables.commit_beside(shard_id, row, "m-0")

    async def state_of(self, store: Any) -> State:
        """Rows, lines and side commits of each shard, without what the two clocks say."""
        images = [await image_of(store, shard_id) for shard_id in SHARDS]
        lines = [await store.read_events(shard_id, 0, 1_000) for shard_id in SHARDS]
        beside = [[(side.shard_id, side.side_id) for side in await store.side_commits([shard])] for shard in SHARDS]
        return [sorted_rows(image) for image in images], lines, beside


def sorted_rows(image: ShardImage) -> ShardImage:
    return replace(image, offsets=tuple(sorted(image.offsets, key=lambda row: row[:4])))


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 200))])
async def test_appends_that_wait_end_as_one_after_the_other(seed: int, store: SqlStore) -> None:
    race = Race(store, seed)
    await race.begin()

    met = [await race.step() for _ in range(STEPS)]

    assert await race.state_of(store) == await race.state_of(race.twin), met
