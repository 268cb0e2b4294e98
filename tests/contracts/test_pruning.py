"""Pruning on both engines: only whole old days go, nothing that a reader has yet to read, and never a hole."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import closing
from datetime import UTC, date, datetime
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from rota.core.group.rows import RowChanges
from rota.core.replica.ports import JournalEvent, ShardBatch
from rota.pipeline.journal import Position, open_journal
from rota.protocol.errors import LinesPruned
from rota.server.retention import delete_old_lines
from rota.storage import pruning
from rota.storage.migrate import single_engine, upgrade
from rota.storage.partitions import create_partitions, existing_days, partition_name
from rota.storage.pruning import forget_reader, list_readers, prune, register_reader
from rota.storage.schema import group_events
from rota.storage.store import SqlStore
from rota.storage.urls import parse_store_url
from rota.storage.verify import ShardReport, verify

DAY_MS = 86_400_000
SHARDS = 2
A_DAY = 12
"""Lines of each shard and day."""
DAYS = 5


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the store is."""
    named = f"sqlite:///{tmp_path / 'rota.db'}"
    return named if request.param == "sqlite" else str(request.getfixturevalue("postgres_dsn"))


@pytest.fixture(autouse=True)
async def service(url: str) -> AsyncIterator[SqlStore]:
    """It uses the store, with a journal that has lines of today and of the four days before."""
    await upgrade(url)
    if url.startswith("postgres"):
        await make_old_days(url)
    store = SqlStore(url)
    await store.open(SHARDS)
    await store.claim(range(SHARDS), "me", "", 600_000)
    for shard_id in range(SHARDS):
        await store.append([batch(shard_id, 1, [days_ago(n // A_DAY) for n in reversed(range(A_DAY * DAYS))])])
    yield store
    await store.close()


def days_ago(days: int) -> int:
    """The first moment of that day, in UTC."""
    return (int(time.time() * 1000) // DAY_MS - days) * DAY_MS


def batch(shard_id: int, first_seq: int, times_ms: list[int]) -> ShardBatch:
    payload = {"member_id": "", "offsets": []}
    events = tuple(
        JournalEvent(first_seq + n, at_ms, "n", "g", 0, "offsets_committed", "", payload)
        for n, at_ms in enumerate(times_ms)
    )
    return ShardBatch(shard_id, 1, first_seq, events, RowChanges())


async def make_old_days(dsn: str) -> None:
    engine = single_engine(parse_store_url(dsn), writes=True)
    async with engine.begin() as connection:
        days = [datetime.fromtimestamp(days_ago(n) / 1000, UTC).date() for n in range(DAYS)]
        await create_partitions(connection, days)
    await engine.dispose()


async def numbers(service: SqlStore) -> dict[int, list[int]]:
    return {s: await lines_left(service, s) for s in range(SHARDS)}


async def lines_left(service: SqlStore, shard_id: int) -> list[int]:
    """Its lines from the first on that is not pruned."""
    after = 0
    while True:
        try:
            return [event.seq for event in await service.read_events(shard_id, after, 1_000)]
        except LinesPruned as pruned:
            after = pruned.first_revision - 1


async def lines_stored(url: str) -> int:
    """Its lines in the table, with those that no reader is given any more."""
    engine = single_engine(parse_store_url(url), writes=False)
    async with engine.connect() as connection:
        count = await connection.scalar(select(func.count()).select_from(group_events))
    await engine.dispose()
    return count or 0


async def read_by(url: str, reader: str, positions: Mapping[int, int]) -> None:
    """As the pipeline leaves its bookmark."""
    journal = open_journal(url)
    journal.bookmark(reader, Position(journal.heads().incarnation, positions))


async def test_days_that_are_over_go_and_the_rest_stays_gapless(url: str, service: SqlStore) -> None:
    reported = await prune(url, keep_days=1, dry_run=True)
    before = await numbers(service)
    done = await prune(url, keep_days=1)
    again = await prune(url, keep_days=1)

    assert reported == done
    assert done.lines == SHARDS * 3 * A_DAY
    assert before == {s: list(range(1, DAYS * A_DAY + 1)) for s in range(SHARDS)}
    assert await numbers(service) == {s: list(range(3 * A_DAY + 1, DAYS * A_DAY + 1)) for s in range(SHARDS)}
    assert await lines_stored(url) == SHARDS * 2 * A_DAY
    assert (again.lines, again.up_to) == (0, {})


async def test_lines_stay_until_all_readers_have_read_them(url: str, service: SqlStore) -> None:
    await register_reader(url, "slow")
    await read_by(url, "quick", {0: 50, 1: 50})
    readers = [each.name for each in await list_readers(url)]
    first = await prune(url, keep_days=1)
    await read_by(url, "slow", {0: 20, 1: 5})
    second = await prune(url, keep_days=1)
    kept = await numbers(service)
    await forget_reader(url, "slow")
    third = await prune(url, keep_days=1)

    assert readers == ["quick", "slow"]
    assert (first.lines, first.held_by) == (0, ("slow",))
    assert (second.lines, second.up_to, second.held_by) == (25, {0: 20, 1: 5}, ("slow",))
    assert [kept[0][0], kept[1][0]] == [21, 6]
    assert (third.lines, third.held_by) == (3 * A_DAY * SHARDS - 25, ())


async def test_a_shard_that_a_reader_has_not_begun_keeps_its_lines(url: str, service: SqlStore) -> None:
    await read_by(url, "slow", {0: A_DAY * DAYS})

    pruned = await prune(url, keep_days=1)

    assert (pruned.lines, pruned.held_by) == (3 * A_DAY, ("slow",))
    assert [numbers_of[0] for numbers_of in (await numbers(service)).values()] == [3 * A_DAY + 1, 1]


async def test_one_line_that_its_reader_has_just_read_goes(url: str, service: SqlStore) -> None:
    last = 3 * A_DAY
    await read_by(url, "slow", {0: last - 1, 1: last - 1})
    await prune(url, keep_days=1)
    await read_by(url, "slow", {0: last, 1: last - 1})

    pruned = await prune(url, keep_days=1)

    assert (pruned.lines, pruned.up_to, pruned.held_by) == (1, {0: last}, ("slow",))
    await read_by(url, "slow", {0: last, 1: last})
    assert (await prune(url, keep_days=1)).held_by == ()


async def test_readers_are_listed_with_what_they_have_yet_to_read(url: str) -> None:
    assert await register_reader(url, "pipeline")
    assert not await register_reader(url, "pipeline")
    new = await list_readers(url)
    await read_by(url, "pipeline", {0: 10})

    [reader] = await list_readers(url)

    assert [(each.name, each.unread) for each in new] == [("pipeline", SHARDS * DAYS * A_DAY)]
    assert (reader.unread, reader.read(0), reader.read(1)) == (SHARDS * DAYS * A_DAY - 10, 10, 0)
    await read_by(url, "pipeline", dict.fromkeys(range(SHARDS), DAYS * A_DAY))
    assert [each.unread for each in await list_readers(url)] == [0]
    assert await forget_reader(url, "pipeline")
    assert not await forget_reader(url, "pipeline")


async def test_the_service_writes_on_and_what_is_left_still_verifies(url: str, service: SqlStore) -> None:
    async with asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(keep_writing(service))
        done = await prune(url, keep_days=2)
    written = writing.result()

    reports = [report async for report in verify(url)]

    assert done.lines == SHARDS * 2 * A_DAY
    assert [report.differences for report in reports] == [(), ()]
    assert all(report.pruned for report in reports)
    assert sum(report.events for report in reports) == SHARDS * DAYS * A_DAY + written


async def keep_writing(store: SqlStore) -> int:
    for number in range(20):
        for shard_id in range(SHARDS):
            assert await store.append([batch(shard_id, DAYS * A_DAY + 1 + number, [days_ago(0)])]) == []
    return 20 * SHARDS


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_the_search_for_old_lines_takes_no_write_lock(url: str) -> None:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as writer:
        writer.execute("BEGIN IMMEDIATE")
        found = await prune(url, keep_days=DAYS)
        writer.execute("ROLLBACK")

    assert (found.lines, found.up_to) == (0, {})


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_two_prunings_at_once_leave_no_hole(url: str, service: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "_PAGE", 2)
    pages, delete_page = [], pruning._delete_page

    async def counted(engine: AsyncEngine, shard_id: int, end: int) -> bool:
        pages.append(shard_id)
        return await delete_page(engine, shard_id, end)

    monkeypatch.setattr(pruning, "_delete_page", counted)

    await asyncio.gather(prune(url, keep_days=1), prune(url, keep_days=2))

    assert len(pages) >= SHARDS * 3 * A_DAY / 2
    assert await numbers(service) == {s: list(range(3 * A_DAY + 1, DAYS * A_DAY + 1)) for s in range(SHARDS)}
    assert [(report.differences, report.pruned) async for report in verify(url)] == [((), True)] * SHARDS


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_a_reader_added_while_lines_are_deleted_keeps_its_own(
    url: str, service: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "_PAGE", 1)
    pruned = asyncio.create_task(prune(url, keep_days=1))
    await until_begun(service)
    await register_reader(url, "late")
    begins = {each.name: dict(each.positions) for each in await list_readers(url)}["late"]
    await pruned

    [late] = await list_readers(url)

    assert late.unread == sum(DAYS * A_DAY - begins[s] for s in range(SHARDS))


async def until_begun(service: SqlStore) -> None:
    """Return once a line is deleted."""
    async with asyncio.timeout(30):
        while await service.count_lines() == SHARDS * DAYS * A_DAY:
            continue  # each count waits for the store


async def test_the_journals_lines_are_counted(url: str, service: SqlStore) -> None:
    before = await service.count_lines()
    await prune(url, keep_days=1)
    open_journal(url).bookmark("late", Position("of another journal", {0: DAYS * A_DAY}))
    left = await service.count_lines()

    assert (before, left) == (SHARDS * DAYS * A_DAY, SHARDS * 2 * A_DAY)
    assert [(each.unread, each.other_journal) for each in await list_readers(url)] == [(left, True)]


async def test_a_server_deletes_the_lines_that_are_old_enough(url: str, service: SqlStore) -> None:
    await delete_old_lines(url, 0)
    kept = await service.count_lines()
    await delete_old_lines(url, 2)

    assert (kept, await service.count_lines()) == (SHARDS * DAYS * A_DAY, SHARDS * 3 * A_DAY)


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
async def test_a_login_that_may_not_delete_stops_no_server(url: str, caplog: pytest.LogCaptureFixture) -> None:
    owner = await asyncpg.connect(url)
    await owner.execute("CREATE ROLE reads_only LOGIN")
    await owner.execute(
        "GRANT USAGE ON SCHEMA rota TO reads_only; GRANT SELECT ON ALL TABLES IN SCHEMA rota TO reads_only"
    )
    await owner.close()

    await delete_old_lines(as_user(url, "reads_only"), 1)

    [warning] = [record for record in caplog.records if record.name == "rota.server.retention"]
    assert "permission denied" in warning.__dict__["error"]


def as_user(dsn: str, user: str) -> str:
    parts = urlsplit(dsn)
    return parts._replace(netloc=f"{user}@{parts.netloc.rpartition('@')[2]}").geturl()


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
async def test_empty_partitions_are_dropped_behind_waiting_readers(url: str) -> None:
    reader = await asyncpg.connect(url)
    transaction = reader.transaction(isolation="repeatable_read", readonly=True)
    await transaction.start()
    seen = await reader.fetchval("SELECT count(*) FROM rota.group_events")

    done = await prune(url, keep_days=1)
    seen_later = await reader.fetchval("SELECT count(*) FROM rota.group_events")
    days_then = await days_of(url)
    await transaction.rollback()
    await reader.close()
    await prune(url, keep_days=1)

    assert done.lines == SHARDS * 3 * A_DAY
    assert seen == seen_later == SHARDS * DAYS * A_DAY
    assert len(days_then) - len(await days_of(url)) == 3


@pytest.fixture
async def truncating(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A transaction that deletes whole days as `prune` does, up to the moment before it commits."""
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    for day in (await days_of(url))[:3]:
        await connection.execute(f"LOCK TABLE rota.{partition_name(day)} IN ACCESS EXCLUSIVE MODE")
        await connection.execute(f"TRUNCATE rota.{partition_name(day)}")
    await connection.execute("UPDATE rota.shards SET first_seq = $1", 3 * A_DAY + 1)
    yield connection
    await connection.close()


async def until_blocked(url: str, by: asyncpg.Connection) -> None:
    """Return once a session waits for a lock that this one holds."""
    watching = await asyncpg.connect(url)
    blocked = "SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))"
    async with asyncio.timeout(30):
        while not await watching.fetchval(blocked, by.get_server_pid()):
            continue  # each query waits for Postgres
    await watching.close()


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
async def test_a_reader_that_is_overtaken_by_a_truncate_is_refused(
    url: str, service: SqlStore, truncating: asyncpg.Connection
) -> None:
    reading = asyncio.create_task(service.read_events(0, 0, 1_000))
    await until_blocked(url, truncating)
    await truncating.execute("COMMIT")

    with pytest.raises(LinesPruned) as refused:
        await reading

    assert refused.value.first_revision == 3 * A_DAY + 1


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
async def test_verify_sees_no_hole_where_it_is_overtaken_by_a_truncate(
    url: str, truncating: asyncpg.Connection
) -> None:
    verifying = asyncio.create_task(first_report(url))
    await until_blocked(url, truncating)
    await truncating.execute("COMMIT")

    report = await verifying

    assert (report.differences, report.pruned) == ((), True)


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
async def test_a_refused_reader_costs_no_connection(url: str, service: SqlStore) -> None:
    await prune(url, keep_days=1)
    connection = await asyncpg.connect(url)
    others = "SELECT array_agg(pid ORDER BY pid) FROM pg_stat_activity WHERE application_name LIKE 'rota%'"
    await service.ping()
    before = await connection.fetchval(others)

    for _ in range(5):
        with pytest.raises(LinesPruned):
            await service.read_events(0, 0, 10)

    assert before == await connection.fetchval(others)
    assert before
    await connection.close()


async def first_report(url: str) -> ShardReport:
    return await anext(verify(url))


async def days_of(url: str) -> list[date]:
    engine = single_engine(parse_store_url(url), writes=False)
    async with engine.connect() as connection:
        found = await existing_days(connection)
    await engine.dispose()
    return found
