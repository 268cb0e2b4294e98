"""What users' own transactions commit for a topic that is deleted meanwhile, and comes back (ADR 107)."""

from __future__ import annotations

import asyncio
import json

import asyncpg
import pytest

from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    CommitOffsets,
    DeleteTopic,
    FetchOffsets,
    FetchReply,
    JoinReply,
    OffsetToCommit,
    PutTopic,
    TopicPartitions,
)
from rota.server.runtime.coordinator import LocalCoordinator
from rota.storage.verify import verify
from tests.fencing.conftest import fetched, joined, serving

COMMIT = "SELECT rota.commit_offsets('default', 'tellers', $1, $2, 'transfers', $3, $4)"
COMMIT_MANY = "SELECT rota.commit_offsets('default', 'tellers', $1, $2, $3::jsonb)"
COMMITTED = "SELECT rota.committed_offset('default', 'tellers', 'transfers', 0)"


async def put(coordinator: LocalCoordinator) -> None:
    assert (await coordinator.call(PutTopic("default", "transfers", 2))).reply.error is ErrorCode.NONE


async def put_again(coordinator: LocalCoordinator) -> None:
    assert (await coordinator.call(DeleteTopic("default", "transfers"))).reply.error is ErrorCode.NONE
    await put(coordinator)


async def topic_id(coordinator: LocalCoordinator) -> int:
    wanted = (TopicPartitions("transfers", (0,)),)
    reply = (await coordinator.call(FetchOffsets("default", "tellers", wanted))).reply
    assert isinstance(reply, FetchReply)
    assert reply.offsets[0].topic_id is not None
    return reply.offsets[0].topic_id


def an_offset(offset: int, of_topic: int) -> str:
    return json.dumps([{"topic": "transfers", "partition": 0, "offset": offset, "topic_id": of_topic}])


async def test_progress_in_sql_is_gone_with_its_topic(
    coordinator: LocalCoordinator, teller: asyncpg.Connection
) -> None:
    me = await joined(coordinator)
    await put(coordinator)
    await teller.execute(COMMIT, me.generation_id, me.member_id, 0, 1_000)

    await put_again(coordinator)

    assert await teller.fetchval(COMMITTED) == -1
    assert await fetched(coordinator) == {}
    await teller.execute(COMMIT, me.generation_id, me.member_id, 0, 3)
    assert await teller.fetchval(COMMITTED) == 3
    assert await fetched(coordinator) == {("transfers", 0): 3}


async def test_a_transaction_of_the_deleted_topic_is_refused(
    coordinator: LocalCoordinator, teller: asyncpg.Connection
) -> None:
    me = await joined(coordinator)
    await put(coordinator)
    before = await topic_id(coordinator)
    await put_again(coordinator)

    with pytest.raises(asyncpg.PostgresError, match="UNKNOWN_TOPIC: topic transfers was deleted") as refused:
        await teller.execute(COMMIT_MANY, me.generation_id, me.member_id, an_offset(7, before))
    await teller.execute(COMMIT_MANY, me.generation_id, me.member_id, an_offset(8, await topic_id(coordinator)))

    assert refused.value.sqlstate == "RT008"
    assert await fetched(coordinator) == {("transfers", 0): 8}


WAITING = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND classid = $1::bigint::oid"
LAST = """
    CREATE FUNCTION public.last() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_advisory_xact_lock(42, 1); RETURN NULL; END $$;
    CREATE CONSTRAINT TRIGGER last AFTER INSERT ON public.ledger
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.last();
"""
"""Makes a COMMIT wait that has passed the fence."""


async def test_a_transaction_that_has_passed_the_fence_does_not_count(
    dsn: str, coordinator: LocalCoordinator, teller: asyncpg.Connection
) -> None:
    """The owner waits for it, and deletes what it has written; one that waits too long is ended by the owner."""
    me = await joined(coordinator)
    await put(coordinator)
    admin = await asyncpg.connect(dsn)
    await admin.execute(LAST)
    await admin.execute("SELECT pg_advisory_lock(42, 1)")
    transaction = teller.transaction()
    await transaction.start()
    await teller.execute(COMMIT, me.generation_id, me.member_id, 0, 1_000)
    await teller.execute("INSERT INTO ledger VALUES (1, 'me')")

    committing = asyncio.create_task(transaction.commit())
    await waiting(admin, 42)
    changing = asyncio.create_task(put_again(coordinator))
    await waiting(admin, 7_682_003, committing)
    await admin.execute("SELECT pg_advisory_unlock(42, 1)")
    await asyncio.gather(committing, return_exceptions=True)
    await changing

    assert await admin.fetchval(COMMITTED) == -1
    assert await fetched(coordinator) == {}
    await admin.close()


async def waiting(admin: asyncpg.Connection, lock: int, unless: asyncio.Task[None] | None = None) -> None:
    """Return once a session waits for this advisory lock, or the task is done."""
    async with asyncio.timeout(60):
        while not await admin.fetchval(WAITING, lock):
            if unless is not None and unless.done():
                return


async def test_a_commit_taken_in_after_the_deletion_does_not_count(dsn: str, teller: asyncpg.Connection) -> None:
    """A row of the deleted topic is left in the store: no owner, new or old, and no check of the store takes it."""
    async with serving(dsn) as coordinator:
        me = await joined(coordinator)
        await put(coordinator)
        await put_again(coordinator)
        await left_behind(dsn, me)

        while_served = await fetched(coordinator)
        in_sql = await teller.fetchval(COMMITTED)
    async with serving(dsn) as coordinator:
        later = await fetched(coordinator)

    assert (while_served, in_sql, later) == ({}, -1, {})
    assert [report.differences for report in [each async for each in verify(dsn)]] == [()] * 4


async def left_behind(dsn: str, me: JoinReply) -> None:
    """What a transaction leaves that has read the topic's id before the deletion, and commits after it."""
    connection = await asyncpg.connect(dsn)
    await connection.execute(
        """
        INSERT INTO rota.offsets (shard_id, namespace, group_id, topic, partition, "offset", metadata, committed_at_ms)
        SELECT shard_id, namespace, group_id, 'transfers', 0, 1000, '', 1 FROM rota.groups WHERE group_id = 'tellers';
        INSERT INTO rota.side_commits (shard_id, namespace, group_id, topic, partition, member_id)
        SELECT shard_id, namespace, group_id, 'transfers', 0, 'm' FROM rota.groups WHERE group_id = 'tellers';
        """
    )
    await connection.close()


# --- offsets of 64 bits --------------------------------------------------------------------------------

ACCEPTED = (0, 2**53 - 1, 2**53, 1_795_372_229_057_000_000, 2**63 - 1)


@pytest.mark.parametrize("offset", ACCEPTED)
async def test_an_offset_of_64_bits_is_the_same_over_sql_and_calls(
    coordinator: LocalCoordinator, teller: asyncpg.Connection, offset: int
) -> None:
    me = await joined(coordinator)

    await teller.execute(COMMIT, me.generation_id, me.member_id, 0, offset)
    of_sql = await fetched(coordinator)
    as_text = [{"topic": "transfers", "partition": 1, "offset": str(offset)}]
    await teller.execute(COMMIT_MANY, me.generation_id, me.member_id, json.dumps(as_text))
    mine = (OffsetToCommit("transfers", 2, offset),)
    await coordinator.call(CommitOffsets("default", "tellers", me.generation_id, mine, me.member_id))

    assert of_sql == {("transfers", 0): offset}
    assert await fetched(coordinator) == {("transfers", number): offset for number in range(3)}
    found = "SELECT rota.committed_offset('default', 'tellers', 'transfers', 2)"
    assert await teller.fetchval(found) == offset


@pytest.mark.parametrize("offset", [2**63, -1, 1.5, "01", "1e3", "+1", "", " 1", "1 ", "٣", str(2**63), None, [], True])
async def test_what_is_no_offset_is_refused_in_sql(
    coordinator: LocalCoordinator, teller: asyncpg.Connection, offset: object
) -> None:
    me = await joined(coordinator)
    given = json.dumps([{"topic": "transfers", "partition": 0, "offset": offset}])

    with pytest.raises(asyncpg.PostgresError, match="offset from 0 to 9223372036854775807") as refused:
        await teller.execute(COMMIT_MANY, me.generation_id, me.member_id, given)

    assert refused.value.sqlstate == "RT005"
