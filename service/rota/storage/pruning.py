"""The journal's readers with their positions, and pruning: it deletes old lines that all readers have read."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from sqlalchemy import Update, delete, func, select, text, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from rota.storage.errors import LOCK_NOT_AVAILABLE, sqlstate, store_errors
from rota.storage.incarnation import read_incarnation
from rota.storage.migrate import check_schema, refuse_missing, single_engine, usable
from rota.storage.partitions import existing_days, partition_name
from rota.storage.schema import ALONE, POSTGRES_SCHEMA, group_events, journal_readers, shards, store_clock_ms
from rota.storage.urls import SqliteLocation, parse_store_url

DAY_MS = 86_400_000

Ends = Mapping[int, int]
"""The last line of each shard that is meant."""


class ReadsJournal(Protocol):
    """A registered reader of the journal."""

    @property
    def name(self) -> str: ...

    def read(self, shard_id: int) -> int:
        """The last line of that shard that it has read; 0 if none."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """The lines that were deleted, or would be."""

    lines: int
    up_to: Ends
    held_by: tuple[str, ...]
    """Readers that have not read all old lines: without them more would go."""


def horizon_ms(store_now_ms: int, keep_days: int, day_ms: int = DAY_MS) -> int:
    """Lines of before then are old: they are of whole days (UTC) that are over for `keep_days`."""
    return (store_now_ms // day_ms - keep_days) * day_ms


def plan(old: Ends, first_seqs: Mapping[int, int], readers: Sequence[ReadsJournal]) -> Pruned:
    """The last line of each shard that is old, or that the slowest reader has read if that is less.

    `old` has the last old line of each shard, `first_seqs` the first line of each that is still there.
    """
    up_to = {shard_id: min(end, read_by_all(readers, shard_id, end)) for shard_id, end in old.items()}
    held_by = tuple(each.name for each in readers if any(each.read(s) < end for s, end in old.items()))
    due = {shard_id: end for shard_id, end in up_to.items() if end >= first_seqs[shard_id]}
    return Pruned(sum(end - first_seqs[shard_id] + 1 for shard_id, end in due.items()), due, held_by)


def read_by_all(readers: Iterable[ReadsJournal], shard_id: int, last: int) -> int:
    """The last line of a shard that every reader has read; `last` if none is registered."""
    return min((each.read(shard_id) for each in readers), default=last)


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader of the journal: the last event of each shard that it has read."""

    name: str
    positions: Mapping[int, int]
    updated_at_ms: int
    unread: int
    """Lines of the journal that it has not read yet."""
    other_journal: bool
    """Its positions are of another journal, before this store was made anew: here it has read nothing."""

    def read(self, shard_id: int) -> int:
        """The last line of that shard that it has read; 0 if none."""
        return self.positions.get(shard_id, 0)


async def list_readers(store_url: str) -> list[Reader]:
    """All registered readers of the journal, by name."""
    async with usable(parse_store_url(store_url), writes=False) as connection:
        return await readers_of(connection)


async def register_reader(store_url: str, name: str) -> bool:
    """Let pruning wait for the new reader `name`; False if it is registered already."""
    async with usable(parse_store_url(store_url), writes=True) as connection:
        engine = postgresql if connection.dialect.name == "postgresql" else sqlite
        before_first = await connection.execute(select(shards.c.shard_id, shards.c.first_seq - 1))
        insert = engine.insert(journal_readers).values(
            reader=name,
            incarnation=await read_incarnation(connection),
            positions=json.dumps({str(shard_id): seq for shard_id, seq in before_first}),
            updated_at_ms=store_clock_ms(),
        )
        added = await connection.execute(insert.on_conflict_do_nothing().returning(journal_readers.c.reader))
        return added.first() is not None


async def forget_reader(store_url: str, name: str) -> bool:
    """Let pruning not wait for `name` any more; False if no reader has that name."""
    async with usable(parse_store_url(store_url), writes=True) as connection:
        gone = delete(journal_readers).where(journal_readers.c.reader == name).returning(journal_readers.c.reader)
        return (await connection.execute(gone)).first() is not None


async def readers_of(connection: AsyncConnection) -> list[Reader]:
    incarnation = await read_incarnation(connection)
    heads = await connection.execute(select(shards.c.shard_id, shards.c.first_seq, shards.c.last_seq))
    spans: dict[int, tuple[int, int]] = {row[0]: (row[1], row[2]) for row in heads}
    rows = await connection.execute(select(journal_readers).order_by(journal_readers.c.reader))
    return [
        _reader(row.reader, row.incarnation == incarnation, row.positions, row.updated_at_ms, spans) for row in rows
    ]


@asynccontextmanager
async def opened(store_url: str, *, writes: bool) -> AsyncIterator[AsyncEngine]:
    """A store with this release's schema, which a service may have open."""
    location = parse_store_url(store_url)
    refuse_missing(location)
    engine = single_engine(location, writes=writes)
    try:
        with store_errors():
            async with engine.connect() as connection:
                await check_schema(connection, location)
        yield engine
    finally:
        await engine.dispose()


def _reader(
    name: str, same_journal: bool, positions: str, updated_at_ms: int, spans: Mapping[int, tuple[int, int]]
) -> Reader:
    read = {int(shard_id): int(seq) for shard_id, seq in json.loads(positions).items()} if same_journal else {}
    unread = sum(max(0, last - max(read.get(shard_id, 0), first - 1)) for shard_id, (first, last) in spans.items())
    return Reader(name, read, updated_at_ms, unread, not same_journal)


_PAGE = 5_000
"""Lines that one transaction deletes from an embedded store: the service beside us waits for it."""

_PATIENCE = text("SET LOCAL lock_timeout = '200ms'")
"""A waiting lock on the whole journal makes all others queue behind it, so the wait for it is short."""


async def prune(store_url: str, keep_days: int, *, dry_run: bool = False) -> Pruned:
    """Delete the lines of whole days (UTC) that are over for `keep_days`, as far as all readers have read them.

    Runs beside services, and never blocks writers for longer than it takes to note some numbers. Each transaction
    deletes lines and says so in `shards.first_seq`: the journal is gapless from there on, in spite of kills.
    """
    assert keep_days >= 1, "today's lines are still being written"
    if dry_run or isinstance(parse_store_url(store_url), SqliteLocation):
        # In SQLite a transaction of an engine that writes blocks the service, and the plan reads the whole journal.
        async with opened(store_url, writes=False) as engine:
            with store_errors():
                async with engine.begin() as connection:
                    pruned = await _planned(connection, await _horizon_ms(connection, keep_days))
        if pruned.up_to and not dry_run:
            async with opened(store_url, writes=True) as engine:
                with store_errors():
                    await _delete_pages(engine, pruned.up_to)
        return pruned
    async with opened(store_url, writes=True) as engine:
        with store_errors():
            async with engine.begin() as connection:
                await connection.execute(ALONE)
                old_before_ms = await _horizon_ms(connection, keep_days)
                pruned = await _planned(connection, old_before_ms)
                if pruned.up_to:
                    await _delete_days(connection, pruned.up_to, old_before_ms)
            await _drop_empty_days(engine, old_before_ms)
    return pruned


async def _horizon_ms(connection: AsyncConnection, keep_days: int) -> int:
    return horizon_ms(int(await connection.scalar(select(store_clock_ms())) or 0), keep_days)


async def _planned(connection: AsyncConnection, old_before_ms: int) -> Pruned:
    ends = (
        select(group_events.c.shard_id, func.max(group_events.c.seq))
        .where(group_events.c.at < old_before_ms)
        .group_by(group_events.c.shard_id)
    )
    old: dict[int, int] = {row[0]: row[1] for row in await connection.execute(ends)}
    firsts = await connection.execute(select(shards.c.shard_id, shards.c.first_seq))
    return plan(old, {row[0]: row[1] for row in firsts}, await readers_of(connection))


# --- Postgres: whole partitions if possible -------------------------------------------------------


async def _delete_days(connection: AsyncConnection, up_to: Ends, old_before_ms: int) -> None:
    """Empty the days that are read to the end, and delete what else is due, in one transaction.

    To empty a partition locks that one alone, to drop it would lock the journal: that is left for later.
    """
    await connection.execute(_PATIENCE)
    for partition in await _old_partitions(connection, old_before_ms):
        # Where another transaction reads those lines just now, they are deleted one by one.
        with suppress(_SomebodyReads):
            await _empty(connection, partition, up_to)
    rows = ", ".join(f"({shard_id}, {end})" for shard_id, end in sorted(up_to.items()))
    due = f"(VALUES {rows}) AS due (shard_id, up_to)"
    await connection.execute(
        text(f"DELETE FROM {_JOURNAL} AS e USING {due} WHERE e.shard_id = due.shard_id AND e.seq <= due.up_to")
    )
    locked = select(shards.c.shard_id).where(shards.c.shard_id.in_(up_to)).order_by(shards.c.shard_id)
    await connection.execute(locked.with_for_update())
    for shard_id, end in sorted(up_to.items()):
        await connection.execute(_first_seq(shard_id, end + 1))


class _SomebodyReads(Exception):
    """A lock was not to be had in time."""


async def _empty(connection: AsyncConnection, partition: str, up_to: Ends) -> None:
    try:
        async with connection.begin_nested():
            await connection.execute(text(f"LOCK TABLE {partition} IN ACCESS EXCLUSIVE MODE"))
            ends = await connection.execute(text(f"SELECT shard_id, max(seq) FROM {partition} GROUP BY shard_id"))
            if all(end <= up_to.get(shard_id, 0) for shard_id, end in ends):
                await connection.execute(text(f"TRUNCATE {partition}"))
    except DBAPIError as error:
        if sqlstate(error) == LOCK_NOT_AVAILABLE:
            raise _SomebodyReads from error
        raise


async def _drop_empty_days(engine: AsyncEngine, old_before_ms: int) -> None:
    """Drop partitions without a line. Where that would have to wait, the next time will do."""
    async with engine.begin() as connection:
        partitions = await _old_partitions(connection, old_before_ms)
    for partition in partitions:
        try:
            async with engine.begin() as connection:
                await connection.execute(_PATIENCE)
                await connection.execute(text(f"LOCK TABLE {_JOURNAL} IN ACCESS EXCLUSIVE MODE"))
                if await connection.scalar(text(f"SELECT NOT EXISTS (SELECT FROM {partition})")):
                    await connection.execute(text(f"DROP TABLE {partition}"))
        except DBAPIError as error:
            if sqlstate(error) != LOCK_NOT_AVAILABLE:
                raise


async def _old_partitions(connection: AsyncConnection, old_before_ms: int) -> list[str]:
    horizon = datetime.fromtimestamp(old_before_ms / 1000, UTC).date()
    days = await existing_days(connection)
    return [f"{POSTGRES_SCHEMA}.{partition_name(day)}" for day in days if day < horizon]


_JOURNAL = f"{POSTGRES_SCHEMA}.group_events"


# --- SQLite: a page at a time ------------------------------------------------------------------------


async def _delete_pages(engine: AsyncEngine, up_to: Ends) -> None:
    for shard_id, end in sorted(up_to.items()):
        while await _delete_page(engine, shard_id, end):
            continue


async def _delete_page(engine: AsyncEngine, shard_id: int, end: int) -> bool:
    """Whether lines up to `end` are left. A reader that was added after the plan keeps its lines, too."""
    async with engine.begin() as connection:
        first: int = (
            await connection.execute(select(shards.c.first_seq).where(shards.c.shard_id == shard_id))
        ).scalar_one()
        free = read_by_all(await readers_of(connection), shard_id, end)
        done = min(end, free, first + _PAGE - 1)
        if done < first:
            return False
        due = (group_events.c.shard_id == shard_id) & (group_events.c.seq <= done)
        await connection.execute(delete(group_events).where(due))
        await connection.execute(_first_seq(shard_id, done + 1))
    return done < end


def _first_seq(shard_id: int, first: int) -> Update:
    return update(shards).where(shards.c.shard_id == shard_id).values(first_seq=first)
