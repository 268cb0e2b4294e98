"""The changes that appends are sent with in races, of every shape of statement, and the line in front of a gate.

`test_generated_races.py` sends them while another transaction is under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from rota.core.group.rows import RowChanges
from rota.core.replica.ports import ShardClaim
from rota.storage.gate import Gate
from rota.storage.rows import TableChange
from rota.storage.schema import FENCE_GATE, topics
from rota.storage.store import SqlStore
from tests.contracts.builders import a_batch, a_group, a_member, a_topic, an_offset, claim_one
from tests.contracts.conftest import SHARD_COUNT

BEFORE = RowChanges(
    groups=[a_group()],
    members=[a_member(f"m-{i}", position=i) for i in range(4)],
    offsets=[an_offset(i) for i in range(4)],
    topics=[a_topic(), a_topic("more")],
)
ONE_GROUP, ONE_MEMBER, ONE_OFFSET = [a_group(generation_id=4)], [a_member("m-9", position=9)], [an_offset(0, 8)]
IN_LINE = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND NOT granted"
FORMER = [("default", "g", f"m-{i}") for i in range(2)]
CHANGES = {
    "line": RowChanges(),
    "group": RowChanges(groups=ONE_GROUP),
    "join": RowChanges(groups=ONE_GROUP, members=ONE_MEMBER),
    "leave": RowChanges(groups=ONE_GROUP, members_deleted=FORMER[:1]),
    "election": RowChanges(groups=ONE_GROUP, members=ONE_MEMBER, members_deleted=FORMER[:1]),
    "commit": RowChanges(offsets=ONE_OFFSET),
    "expiry": RowChanges(offsets_deleted=[("default", "g", "documents", 1)]),
    "topic": RowChanges(topics=[a_topic("new")]),
    "topic_deleted": RowChanges(topics=[a_topic("more", 0, topic_id=5)]),
    "joins": RowChanges(groups=ONE_GROUP, members=[*ONE_MEMBER, a_member("m-8", position=8)]),
    "leaves": RowChanges(groups=ONE_GROUP, members_deleted=FORMER),
    "commits": RowChanges(offsets=[an_offset(0, 8), an_offset(7)]),
    "expiries": RowChanges(offsets_deleted=[("default", "g", "documents", i) for i in range(2)]),
}


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[SqlStore]:
    store = SqlStore(postgres_url)
    await store.open(SHARD_COUNT)
    yield store
    await store.close()


async def filled(store: SqlStore, shard_id: int = 0) -> ShardClaim:
    claim = await claim_one(store, shard_id)
    assert await store.append([a_batch(claim, rows=BEFORE)]) == []
    return replace(claim, last_seq=1)


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


async def test_an_append_locks_its_shards_from_the_lowest_up(store: SqlStore, postgres_url: str) -> None:
    claims = [await filled(store, 1), await filled(store, 0)]
    other = await asyncpg.connect(postgres_url)
    async with other.transaction():
        await other.execute("SELECT FROM rota.shards WHERE shard_id = 0 FOR UPDATE")
        append = asyncio.create_task(store.append([a_batch(claim) for claim in claims]))
        while not await other.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
            assert not append.done(), "the append has passed a shard that is locked"
        free = await other.fetchval("SELECT shard_id FROM rota.shards WHERE shard_id = 1 FOR UPDATE SKIP LOCKED")

    assert (free, await append) == (1, [])
    await other.close()


async def test_a_late_append_says_why_holders_of_its_gate_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    def reading() -> Any:
        raise OSError("no connection")

    gate = Gate(reading)
    with gate.watched():
        while not caplog.records:  # noqa: ASYNC110 - the gate's own task writes the record
            await asyncio.sleep(0.02)

    assert caplog.records[0].error == "no connection"  # type: ignore[attr-defined]


def test_no_row_is_both_deleted_and_written_by_the_one_statement() -> None:
    change = TableChange(topics, rows=[(0, "default", "a", 1, "[]")], gone=[(0, "default", "a"), (0, "default", "b")])

    assert change.gone_for_good() == [(0, "default", "b")]
