"""`rota.assert_current` and `rota.commit_offsets` inside a user's transaction."""

from __future__ import annotations

import asyncio
import json

import asyncpg
import pytest
from msgspec.structs import replace

from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    CommitOffsets,
    DeleteGroup,
    FetchOffsets,
    FetchReply,
    JoinGroup,
    JoinReply,
    OffsetToCommit,
    Protocol,
)
from rota.server.runtime.coordinator import LocalCoordinator
from rota.storage.verify import verify
from tests.fencing.conftest import connected, fetched, joined, left, replaced, serving

ASSERT = "SELECT rota.assert_current('default', 'tellers', $1, $2)"
COMMIT = "SELECT rota.commit_offsets('default', 'tellers', $1, $2, 'transfers', $3, $4)"
COMMIT_MANY = "SELECT rota.commit_offsets('default', 'tellers', $1, $2, $3::jsonb)"
WRITE = "INSERT INTO ledger VALUES ($1, 'me')"


async def written(connection: asyncpg.Connection) -> list[int]:
    return [row["number"] for row in await connection.fetch("SELECT number FROM ledger ORDER BY number")]


async def test_work_and_progress_commit_together(coordinator: LocalCoordinator, teller: asyncpg.Connection) -> None:
    me = await joined(coordinator)

    async with teller.transaction():
        await teller.execute(WRITE, 1)
        await teller.execute(COMMIT, me.generation_id, me.member_id, 0, 7)
        before = await fetched(coordinator)

    assert before == {}
    assert await fetched(coordinator) == {("transfers", 0): 7}
    assert await teller.fetchval("SELECT rota.committed_offset('default', 'tellers', 'transfers', 0)") == 7
    assert await written(teller) == [1]


@pytest.mark.parametrize("isolation", ["read_committed", "repeatable_read", "serializable"])
async def test_who_is_overtaken_in_mid_transaction_cannot_commit(
    coordinator: LocalCoordinator, teller: asyncpg.Connection, isolation: str
) -> None:
    old = await joined(coordinator)

    transaction = teller.transaction(isolation=isolation)
    await transaction.start()
    await teller.execute(ASSERT, old.generation_id, old.member_id)
    await teller.execute(WRITE, 1)
    # A transaction that is under way holds up no rebalance.
    new = await replaced(coordinator, old)
    with pytest.raises(asyncpg.PostgresError) as refused:
        await transaction.commit()

    assert new.generation_id > old.generation_id
    assert refused.value.sqlstate == ("RT001" if isolation == "read_committed" else "40001")
    assert await written(teller) == []


async def test_a_stale_call_fails_at_once_and_says_why(
    coordinator: LocalCoordinator, teller: asyncpg.Connection
) -> None:
    old = await joined(coordinator)
    new = await replaced(coordinator, old)

    with pytest.raises(asyncpg.PostgresError, match="ILLEGAL_GENERATION") as stale:
        await teller.execute(ASSERT, old.generation_id, old.member_id)
    with pytest.raises(asyncpg.PostgresError, match="UNKNOWN_MEMBER_ID") as fenced:
        await teller.execute(COMMIT, new.generation_id, old.member_id, 0, 7)
    with pytest.raises(asyncpg.PostgresError, match="GROUP_ID_NOT_FOUND") as missing:
        await teller.execute("SELECT rota.assert_current('default', 'nobody', 1)")

    assert [e.value.sqlstate for e in (stale, fenced, missing)] == ["RT001", "RT002", "RT003"]


async def test_no_entry_accepts_a_commit_of_the_next_generation(
    coordinator: LocalCoordinator, teller: asyncpg.Connection
) -> None:
    me = await joined(coordinator)
    join = JoinGroup("default", "tellers", "worker", (Protocol("p"),), 30_000, 30_000, group_instance_id="i2")
    newcomer = (await coordinator.call(replace(join, wait_ms=1))).reply
    assert isinstance(newcomer, JoinReply)
    assert newcomer.pending

    offsets = (OffsetToCommit("t", 0, 7),)
    call = CommitOffsets("default", "tellers", me.generation_id, offsets, newcomer.member_id)
    reply = (await coordinator.call(call)).reply
    with pytest.raises(asyncpg.PostgresError, match="UNKNOWN_MEMBER_ID"):
        await teller.execute(ASSERT, me.generation_id, newcomer.member_id)
    with pytest.raises(asyncpg.PostgresError, match="UNKNOWN_MEMBER_ID"):
        await teller.execute(COMMIT, me.generation_id, newcomer.member_id, 0, 7)

    assert reply.error is ErrorCode.ILLEGAL_GENERATION
    await teller.execute(COMMIT, me.generation_id, me.member_id, 0, 7)


async def test_an_emptied_group_has_no_current_generation(
    coordinator: LocalCoordinator, teller: asyncpg.Connection
) -> None:
    me = await joined(coordinator)
    await left(coordinator, me)

    for generation_id in (me.generation_id, me.generation_id + 1):
        with pytest.raises(asyncpg.PostgresError, match="ILLEGAL_GENERATION"):
            await teller.execute("SELECT rota.assert_current('default', 'tellers', $1)", generation_id)


@pytest.mark.parametrize(
    "offsets",
    [
        [],
        {},
        [{"partition": 0, "offset": 1}],
        [{"topic": "a b", "partition": 0, "offset": 1}],
        [{"topic": "t", "partition": -1, "offset": 1}],
        [{"topic": "t", "partition": 0, "offset": 1, "metadata": "x" * 4097}],
        [{"topic": "t", "partition": 0, "offset": 1.5}],
    ],
)
async def test_offsets_that_are_none_are_refused(
    coordinator: LocalCoordinator, teller: asyncpg.Connection, offsets: object
) -> None:
    me = await joined(coordinator)

    with pytest.raises(asyncpg.PostgresError, match="INVALID_REQUEST"):
        await teller.execute(COMMIT_MANY, me.generation_id, me.member_id, json.dumps(offsets))


async def test_many_offsets_in_one_call_keep_the_last_of_a_partition(
    coordinator: LocalCoordinator, teller: asyncpg.Connection
) -> None:
    me = await joined(coordinator)
    given = [{"topic": "t", "partition": n % 3, "offset": n, "metadata": "m", "leader_epoch": 4} for n in range(6)]

    await teller.execute(COMMIT_MANY, me.generation_id, me.member_id, json.dumps(given))

    assert await fetched(coordinator) == {("t", 0): 3, ("t", 1): 4, ("t", 2): 5}


async def test_a_retention_is_committed_with_the_transaction(
    coordinator: LocalCoordinator, teller: asyncpg.Connection
) -> None:
    me = await joined(coordinator)
    kept = {"topic": "t", "partition": 0, "offset": 1, "retention_time_ms": 60_000}
    found = []

    for given in (kept, {"topic": "t", "partition": 0, "offset": 2}):
        await teller.execute(COMMIT_MANY, me.generation_id, me.member_id, json.dumps([given]))
        reply = (await coordinator.call(FetchOffsets("default", "tellers"))).reply
        assert isinstance(reply, FetchReply)
        (offset,) = reply.offsets
        found.append(offset.expires_at_ms and offset.expires_at_ms - offset.committed_at_ms)

    assert found == [60_000, None], "a commit that names no retention takes the former one away"


async def test_the_last_to_commit_wins_whichever_door_it_takes(
    coordinator: LocalCoordinator, teller: asyncpg.Connection
) -> None:
    me = await joined(coordinator)
    found = []
    for offset in range(1, 5):
        if offset % 2:
            await teller.execute(COMMIT, me.generation_id, me.member_id, 0, offset)
        else:
            commit = OffsetToCommit("transfers", 0, offset)
            await coordinator.call(CommitOffsets("default", "tellers", me.generation_id, (commit,), me.member_id))
        if offset > 2:
            found.append((await fetched(coordinator))[("transfers", 0)])

    assert found == [3, 4]


async def test_progress_outlives_the_owner_that_never_learned_of_it(dsn: str, teller: asyncpg.Connection) -> None:
    async with serving(dsn) as first:
        me = await joined(first)
        await teller.execute(COMMIT, me.generation_id, me.member_id, 0, 7)
        await first.crash()
    # The shard has no owner now: the user's transactions need none.
    await teller.execute(COMMIT, me.generation_id, me.member_id, 1, 8)

    async with serving(dsn, steal=True) as second:
        assert await fetched(second) == {("transfers", 0): 7, ("transfers", 1): 8}


async def test_the_journal_records_it_and_folds_to_the_rows(dsn: str, teller: asyncpg.Connection) -> None:
    async with serving(dsn) as coordinator:
        me = await joined(coordinator)
        await teller.execute(COMMIT, me.generation_id, me.member_id, 0, 7)
        on_the_way = [report.differences async for report in verify(dsn)]
        await fetched(coordinator)
        taken_in = [report.differences async for report in verify(dsn)]

        events = [e for shard in range(4) for e in await coordinator.events(shard, 0, 100)]

    assert not any(on_the_way)
    assert not any(taken_in)
    (committed,) = [event for event in events if event.kind == "offsets_committed"]
    assert (committed.payload["member_id"], committed.reason) == (me.member_id, "in a transaction of the user's")


async def test_a_deleted_group_takes_such_offsets_with_it(
    dsn: str, coordinator: LocalCoordinator, teller: asyncpg.Connection
) -> None:
    me = await joined(coordinator)
    await teller.execute(COMMIT, me.generation_id, me.member_id, 0, 7)
    await left(coordinator, me)

    reply = (await coordinator.call(DeleteGroup("default", "tellers"))).reply

    assert reply.error is ErrorCode.NONE
    assert await teller.fetchval("SELECT rota.committed_offset('default', 'tellers', 'transfers', 0)") == -1
    assert not any([report.differences async for report in verify(dsn)])


async def test_those_who_commit_do_not_starve_a_rebalance(coordinator: LocalCoordinator, dsn: str) -> None:
    """Sixteen connections commit without a pause; a rebalance must get its turn between them."""
    me = await joined(coordinator)
    over = asyncio.Event()
    committed = 0

    async def commit_on_and_on(partition: int) -> str:
        nonlocal committed
        async with connected(dsn) as connection:
            while True:
                try:
                    await connection.execute(COMMIT, me.generation_id, me.member_id, partition, committed)
                except asyncpg.PostgresError as error:
                    if error.sqlstate != "40001":
                        return str(error.sqlstate)
                else:
                    assert not over.is_set(), "a stale commit was accepted"
                    committed += 1

    async with asyncio.TaskGroup() as tasks:
        committers = [tasks.create_task(commit_on_and_on(partition)) for partition in range(16)]
        while committed < 50:  # noqa: ASYNC110 - a count has no event
            await asyncio.sleep(0.001)
        new = await replaced(coordinator, me)
        over.set()

    assert new.generation_id > me.generation_id
    assert {task.result() for task in committers} <= {"RT001", "RT002"}


async def test_the_public_may_not_call_functions_nor_users_use_tables(
    coordinator: LocalCoordinator, teller: asyncpg.Connection
) -> None:
    me = await joined(coordinator)

    for statement in (
        "SELECT * FROM rota.offsets",
        "INSERT INTO rota.fence_checks (namespace, group_id, generation_id) VALUES ('default', 'tellers', 1)",
        "SELECT rota.write_offsets(0, 'default', 'tellers', 'm', '[]')",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await teller.execute(statement)
    # What a user puts into a schema of its own must not be taken for ours.
    await teller.execute("CREATE TEMPORARY TABLE offsets (topic text)")
    await teller.execute("SET search_path = pg_temp, public, rota")
    await teller.execute(COMMIT, me.generation_id, me.member_id, 0, 7)

    assert await fetched(coordinator) == {("transfers", 0): 7}
