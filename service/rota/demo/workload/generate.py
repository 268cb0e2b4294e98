"""Generate a whole journal: shards are simulated side by side, one process a core, and written as they go.

Lines are written as fast as the store accepts them: COPY on Postgres, large transactions on SQLite.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from multiprocessing import active_children

from rota.core.group.rows import RowChanges, ShardImage
from rota.core.replica.ports import ShardBatch, StoreRefused
from rota.demo.workload.fleet import DAY_MS, draw_group
from rota.demo.workload.shard import JournalRow, ShardWorld
from rota.protocol.ids import shard_of
from rota.storage.migrate import transaction, upgrade
from rota.storage.postgres import asyncpg_connect
from rota.storage.store import SqlStore
from rota.storage.urls import PostgresLocation, SqliteLocation, parse_store_url

Report = Callable[[int, int, int], None]
"""Is called with the number of finished shards, the number of all shards, and the number of lines so far."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A requested journal. It ends at `until_ms` of the wall clock; the same values give the same lines."""

    store_url: str
    groups: int
    days: float
    seed: int
    until_ms: int
    shard_count: int = 64

    @property
    def from_ms(self) -> int:
        return self.until_ms - int(self.days * DAY_MS)


@dataclass(frozen=True, slots=True)
class Generated:
    lines: int
    seconds: float


def generate(wanted: Wanted, *, processes: int = 0, report: Report = lambda _done, _all, _lines: None) -> Generated:
    """Create the store and fill it; raise `StoreRefused` if it has a journal already."""
    began = time.perf_counter()
    asyncio.run(prepare(wanted.store_url, wanted.shard_count, wanted.from_ms, wanted.until_ms))
    lines = 0
    with _writing(wanted, processes or os.cpu_count() or 1) as shards:
        for done, shard in enumerate(as_completed(shards), 1):
            written = shard.result()
            # Sequentially in this process, because an embedded store admits one process at a time.
            asyncio.run(finish_shard(wanted.store_url, written.image, written.epoch))
            lines += written.lines
            report(done, wanted.shard_count, lines)
    return Generated(lines, time.perf_counter() - began)


@contextmanager
def _writing(wanted: Wanted, processes: int) -> Iterator[list[Future[_Written]]]:
    """Write each shard in a separate process; terminate the processes if the block raises an exception."""
    with ProcessPoolExecutor(processes) as pool:
        try:
            # A terminal sends Ctrl-C to all processes. This one ends the others, which inherit that SIGINT is blocked.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                shards = [pool.submit(_write_shard, wanted, shard_id) for shard_id in range(wanted.shard_count)]
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            yield shards
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in active_children():
                child.terminate()
            raise


@dataclass(frozen=True, slots=True)
class _Written:
    """The number of lines of a shard's journal, and the shard's state after them."""

    lines: int
    image: ShardImage
    epoch: int


def _write_shard(wanted: Wanted, shard_id: int) -> _Written:
    """Simulate one shard and write all its lines."""
    plans = [draw_group(number, wanted.seed) for number in range(wanted.groups)]
    mine = [plan for plan in plans if shard_of("default", plan.group_id, wanted.shard_count) == shard_id]
    world = ShardWorld(shard_id, mine, seed=wanted.seed, starts_at_ms=wanted.from_ms)
    lines = asyncio.run(write_lines(wanted.store_url, world.run(wanted.until_ms)))
    return _Written(lines, world.image(), world.epoch)


# --- writing into a store --------------------------------------------------------------------------

COLUMNS = (
    "shard_id", "seq", "at", "epoch", "namespace", "group_id", "generation_id", "kind", "reason", "payload",
)  # fmt: skip
_CHUNK = 20_000
_REPLICA = "generator"


async def prepare(store_url: str, shard_count: int, from_ms: int, until_ms: int) -> None:
    """Create the schema, the store's identity and the partitions of those days; the journal must be empty."""
    await upgrade(store_url)
    store = SqlStore(store_url)
    await store.open(shard_count)
    try:
        if any(owner.last_seq for owner in await store.owners()):
            raise StoreRefused("this store has a journal already: name a new one")
        claims = await store.claim(range(shard_count), _REPLICA, "", 1)
        if len(claims) != shard_count:
            raise StoreRefused("a service is using this store: name a new one")
    finally:
        await store.close()
    location = parse_store_url(store_url)
    if isinstance(location, PostgresLocation):
        await _make_days(location, from_ms, until_ms)


async def write_lines(store_url: str, rows: Iterable[JournalRow]) -> int:
    """Write the lines, and return their number."""
    location = parse_store_url(store_url)
    if isinstance(location, SqliteLocation):
        return await asyncio.to_thread(_write_sqlite, str(location.path), rows)
    return await _copy(location, rows)


async def finish_shard(store_url: str, image: ShardImage, epoch: int) -> None:
    """Set the end of the shard's journal, and write the rows of its state at that line."""
    location = parse_store_url(store_url)
    update = "UPDATE {} SET last_seq = {}, epoch = {}, lease_until_ms = 0 WHERE shard_id = {}"
    if isinstance(location, SqliteLocation):
        with closing(sqlite3.connect(location.path, timeout=60)) as connection, connection:
            connection.execute(update.format("shards", image.last_seq, epoch, image.shard_id))
    else:
        connection = await asyncpg_connect(location)
        try:
            await connection.execute(update.format("rota.shards", image.last_seq, epoch, image.shard_id))
        finally:
            await connection.close()
    rows = RowChanges(
        groups=list(image.groups), members=list(image.members), offsets=list(image.offsets), topics=list(image.topics)
    )
    store = SqlStore(store_url, write_timeout_ms=60_000)
    await store._connections.open()
    try:
        await store.append([ShardBatch(image.shard_id, epoch, image.last_seq + 1, (), rows)])
    finally:
        await store.close()


def _write_sqlite(path: str, rows: Iterable[JournalRow]) -> int:
    places = ", ".join("?" * len(COLUMNS))
    sql = f"INSERT INTO group_events ({', '.join(COLUMNS)}) VALUES ({places})"
    count = 0
    with closing(sqlite3.connect(path, timeout=600)) as connection:
        connection.execute("PRAGMA synchronous = NORMAL")
        for chunk in _chunks(rows):
            with connection:
                connection.executemany(sql, chunk)
            count += len(chunk)
    return count


async def _copy(location: PostgresLocation, rows: Iterable[JournalRow]) -> int:
    connection = await asyncpg_connect(location)
    count = 0
    try:
        for chunk in _chunks(rows):
            records = [(s, n, _moment(at_ms), *rest) for s, n, at_ms, *rest in chunk]
            await connection.copy_records_to_table("group_events", schema_name="rota", columns=COLUMNS, records=records)
            count += len(chunk)
    finally:
        await connection.close()
    return count


async def _make_days(location: PostgresLocation, from_ms: int, until_ms: int) -> None:
    from rota.storage.partitions import create_partitions

    first, last = _moment(from_ms).date(), _moment(until_ms).date()
    async with transaction(location, writes=True) as connection:
        await create_partitions(connection, [first + timedelta(days=n) for n in range((last - first).days + 1)])


def _chunks(rows: Iterable[JournalRow]) -> Iterator[list[JournalRow]]:
    iterator = iter(rows)
    while chunk := list(islice(iterator, _CHUNK)):
        yield chunk


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=at_ms)
