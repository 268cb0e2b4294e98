"""Reading a store's journal as Arrow batches, without Spark and without the service: Postgres by ADBC, SQLite by hand.

Readers only read: each transaction says so, and a hot standby will do. Nothing here imports more of Rota than names,
because this runs on Spark's executors.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, unquote

import pyarrow as pa

from rota.pipeline.events import EVENTS
from rota.pipeline.failures import JournalRefused, JournalUnreachable, LinesMissing
from rota.pipeline.positions import PRUNED_HINT, Heads, Position, Span

STATEMENT_TIMEOUT = "30min"
"""Longer than any sane task; a reader that was forgotten does not hold back Postgres's vacuum for ever."""

_BATCH_ROWS = 20_000
_BATCH_BYTES = {"adbc.postgresql.batch_size_hint_bytes": str(4 * 1024 * 1024)}
"""Of the driver's own 16 MiB each batch is new memory to the kernel, which costs a tenth of the reading."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which lines of a span, and which columns of them. Without conditions every line must be there."""

    columns: tuple[str, ...] = tuple(EVENTS.names)
    groups: tuple[tuple[str, str], ...] = ()
    """(namespace, group id) of the groups that are wanted; all where there are none."""
    kinds: tuple[str, ...] = ()

    @property
    def is_partial(self) -> bool:
        return bool(self.groups or self.kinds)


class Journal(Protocol):
    """One store's journal. What drivers raise becomes a `PipelineFailed` that says what to do."""

    def heads(self) -> Heads:
        """What there is to read, all shards as of one moment."""

    def schema_version(self) -> str:
        """The migration that the store's schema stands at."""

    def batches(self, spans: Sequence[Span], wanted: Wanted) -> Iterator[pa.RecordBatch]:
        """The lines of these spans, in no order. `LinesMissing` if one is not there."""

    def up_to(self, start: Position, end: Position, lines: int) -> Position:
        """A position between `start` and `end`, about `lines` lines on, that is one moment in all shards."""

    def bookmark(self, reader: str, position: Position) -> None:
        """Say that `reader` has read up to there, so that pruning stays behind it."""


def open_journal(url: str) -> Journal:
    """The journal of the store at `sqlite:///…` or `postgresql://…`."""
    scheme, _, rest = url.partition("://")
    if scheme in ("postgresql", "postgres"):
        return PostgresJournal(f"postgresql://{rest}")
    if scheme == "sqlite" and len(rest) > 1:
        return SqliteJournal(Path(unquote(rest[1:])).expanduser().absolute())
    raise JournalRefused(f"a store's URL is sqlite:///PATH or postgresql://…, not {scheme}://…")


_HEADS = "SELECT s.shard_id, s.first_seq, s.last_seq, t.incarnation, t.shard_count FROM {shards} AS s, {store} AS t"
_STORE = "SELECT incarnation, shard_count FROM {store}"


class SqliteJournal:
    """The embedded store's file. It is opened read-only, and may be in use by a server."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def heads(self) -> Heads:
        with self._reading() as connection:
            connection.execute("BEGIN")
            rows = connection.execute(_HEADS.format(shards="shards", store="store")).fetchall()
            return _heads(rows, connection.execute(_STORE.format(store="store")).fetchall())

    def schema_version(self) -> str:
        with self._reading() as connection:
            return str(connection.execute("SELECT version_num FROM alembic_version").fetchone()[0])

    def batches(self, spans: Sequence[Span], wanted: Wanted) -> Iterator[pa.RecordBatch]:
        schema = _schema_of(wanted)
        columns = ", ".join("at * 1000" if name == "at" else name for name in schema.names)
        for span in spans:
            check = _GapCheck(span, wanted)
            with self._reading() as connection:
                sql, values = _condition(wanted, "?")
                where = f"shard_id = ? AND seq BETWEEN ? AND ?{sql}"
                bounds = (span.shard_id, span.first, span.last)
                rows = connection.execute(f"SELECT {columns} FROM group_events WHERE {where}", (*bounds, *values))
                while page := rows.fetchmany(_BATCH_ROWS):
                    arrays = [
                        pa.array(column, field.type)
                        for column, field in zip(zip(*page, strict=True), schema, strict=True)
                    ]
                    yield check.seen(pa.RecordBatch.from_arrays(arrays, schema=schema))
            check.finish()

    def up_to(self, start: Position, end: Position, lines: int) -> Position:
        with self._reading() as connection:

            def ask(sql: str, *values: int) -> int | None:
                answer = connection.execute(sql.format(events="group_events"), values).fetchone()[0]
                return None if answer is None else int(answer)

            return _aligned(start, end, lines, ask, "?")

    def bookmark(self, reader: str, position: Position) -> None:
        with self._connected("rw") as connection, connection:
            now = "CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)"
            connection.execute(_BOOKMARK.format(table="journal_readers", now=now, p="?"), _bookmark(reader, position))

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._connected("ro") as connection:
            yield connection

    @contextmanager
    def _connected(self, mode: str) -> Iterator[sqlite3.Connection]:
        if not self._path.exists():
            raise JournalUnreachable(f"there is no store at {self._path}")
        try:
            connection = sqlite3.connect(
                f"file:{quote(str(self._path))}?mode={mode}", uri=True, timeout=10, isolation_level=None
            )
            with closing(connection):
                yield connection
        except sqlite3.OperationalError as error:
            if "no such" in str(error):
                raise JournalRefused(_OLD_SCHEMA.format(error)) from error
            raise JournalUnreachable(f"the store at {self._path} cannot be read: {error}") from error
        except sqlite3.DatabaseError as error:
            raise JournalRefused(f"{self._path} is no store: {error}") from error


class PostgresJournal:
    """A Postgres, primary or standby. libpq finds the password: PGPASSFILE, PGSERVICE, or the URL."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def heads(self) -> Heads:
        with self._cursor() as cursor:
            cursor.execute(_HEADS.format(shards="rota.shards", store="rota.store"))
            rows = cursor.fetchall()
            cursor.execute(_STORE.format(store="rota.store"))
            return _heads(rows, cursor.fetchall())

    def schema_version(self) -> str:
        with self._cursor() as cursor:
            cursor.execute("SELECT version_num FROM rota.alembic_version")
            return str(cursor.fetchone()[0])

    def batches(self, spans: Sequence[Span], wanted: Wanted) -> Iterator[pa.RecordBatch]:
        schema = _schema_of(wanted)
        columns = ", ".join(schema.names)
        with self._cursor() as cursor:
            cursor.adbc_statement.set_options(**_BATCH_BYTES)
            for span in spans:
                check = _GapCheck(span, wanted)
                sql, values = _condition(wanted, "literal")
                where = f"shard_id = {span.shard_id} AND seq BETWEEN {span.first} AND {span.last}{sql}"
                assert not values
                cursor.execute(f"SELECT {columns} FROM rota.group_events WHERE {where}")
                for batch in cursor.fetch_record_batch():
                    yield check.seen(batch.cast(schema))
                check.finish()

    def up_to(self, start: Position, end: Position, lines: int) -> Position:
        with self._cursor() as cursor:

            def ask(sql: str, *values: int) -> int | None:
                cursor.execute(sql.format(*values, events="rota.group_events"))
                answer = cursor.fetchone()[0]
                return None if answer is None else int(answer)

            return _aligned(start, end, lines, ask, "literal")

    def bookmark(self, reader: str, position: Position) -> None:
        with self._cursor(writes=True) as cursor:
            name, incarnation, positions = (_literal(value) for value in _bookmark(reader, position))
            now = "CAST(extract(epoch from clock_timestamp()) * 1000 AS BIGINT)"
            sql = _BOOKMARK.format(table="rota.journal_readers", now=now, p="{}")
            cursor.execute(sql.format(name, incarnation, positions))

    @contextmanager
    def _cursor(self, *, writes: bool = False) -> Iterator[Any]:
        """A cursor in a transaction whose settings end with it, so that it works through a pooler, too."""
        import adbc_driver_manager
        from adbc_driver_postgresql import dbapi

        try:
            with dbapi.connect(self._dsn) as connection, connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ" + ("" if writes else " READ ONLY"))
                cursor.execute(f"SET LOCAL statement_timeout = '{STATEMENT_TIMEOUT}'")
                yield cursor
                connection.commit()
        except adbc_driver_manager.Error as error:
            raise _failure(error) from error


# --- what both have in common ---------------------------------------------------------------------

_OLD_SCHEMA = "the store's schema is not this release's ({}): run `rota db upgrade`"
_BOOKMARK = (
    "INSERT INTO {table} (reader, incarnation, positions, updated_at_ms) VALUES ({p}, {p}, {p}, {now})"
    " ON CONFLICT (reader) DO UPDATE SET incarnation = excluded.incarnation,"
    " positions = excluded.positions, updated_at_ms = excluded.updated_at_ms"
)


class _GapCheck:
    """Counts the lines of a span: a journal is gapless, so what is missing was pruned or lost."""

    def __init__(self, span: Span, wanted: Wanted) -> None:
        self._span = span
        self._columns = list(wanted.columns)
        self._checks = not wanted.is_partial
        self._here = bytearray(span.lines) if self._checks else bytearray()

    def seen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Take note of a batch; returns what was wanted of it."""
        if self._checks:
            import numpy

            places = batch.column("seq").to_numpy() - self._span.first
            numpy.frombuffer(self._here, dtype=numpy.uint8)[places] = 1
        return batch.select(self._columns)

    def finish(self) -> None:
        missing = self._here.count(0)
        if missing:
            first = self._span.first + self._here.index(0)
            last = self._span.first + self._here.rindex(0)
            raise LinesMissing(
                f"shard {self._span.shard_id}: {missing} of the lines {first} to {last} are not there, pruned or lost: "
                f"{PRUNED_HINT}"
            )


def _schema_of(wanted: Wanted) -> pa.Schema:
    """What is read: `seq` in any case, for it tells what is missing."""
    names = [name for name in EVENTS.names if name in wanted.columns or name == "seq"]
    return pa.schema([EVENTS.field(name) for name in names])


def _condition(wanted: Wanted, style: str) -> tuple[str, list[str]]:
    """The rest of a WHERE clause, with `?` for values or, where the driver's COPY takes none, with literals."""
    values = [part for group in wanted.groups for part in group] + list(wanted.kinds)
    place = iter(["?"] * len(values) if style == "?" else map(_literal, values))
    parts = []
    if wanted.groups:
        each = [f"(namespace = {next(place)} AND group_id = {next(place)})" for _ in wanted.groups]
        parts.append(f" AND ({' OR '.join(each)})")
    if wanted.kinds:
        parts.append(f" AND kind IN ({', '.join(next(place) for _ in wanted.kinds)})")
    return "".join(parts), values if style == "?" else []


def _literal(text: str) -> str:
    """A text as SQL writes it, where `standard_conforming_strings` is on, as it is since Postgres 9.1."""
    return "'" + text.replace("'", "''") + "'"


def _heads(rows: Sequence[Sequence[Any]], stores: Sequence[Sequence[Any]]) -> Heads:
    if not stores:
        raise JournalRefused("no service ever opened this store: start `rota serve` on it first")
    incarnation, shard_count = stores[0]
    first = {int(shard_id): int(seq) for shard_id, seq, *_ in rows}
    return Heads(str(incarnation), int(shard_count), first, {int(row[0]): int(row[2]) for row in rows})


def _bookmark(reader: str, position: Position) -> tuple[str, str, str]:
    import json

    return reader, position.incarnation, json.dumps(position.encode()["shards"], separators=(",", ":"))


def _aligned(start: Position, end: Position, lines: int, ask: Any, style: str) -> Position:
    """About `lines` further, cut at one moment: no shard runs ahead of the others in time.

    Each shard gets an equal share of the lines. The moment is when the first of those that have more than their share
    comes to the end of it, so every cut makes progress.
    """
    spans = {shard_id: (start.shards.get(shard_id, 0), last) for shard_id, last in end.shards.items()}
    behind = {shard_id: span for shard_id, span in spans.items() if span[0] < span[1]}
    if sum(last - done for done, last in behind.values()) <= lines:
        return end
    share = max(1, lines // len(behind))
    p = ["?"] * 4 if style == "?" else ["{0}", "{1}", "{2}", "{3}"]
    at = f"SELECT max(at) FROM {{events}} WHERE shard_id = {p[0]} AND seq = {p[1]}"
    found = (
        f"SELECT max(seq) FROM {{events}} WHERE shard_id = {p[0]} AND seq > {p[1]} AND seq <= {p[2]} AND at <= {p[3]}"
    )
    if style != "?":
        at = at.replace("max(at)", "CAST(extract(epoch from max(at)) * 1000000 AS BIGINT)")
        found = found.replace("at <= {3}", "at <= 'epoch'::timestamptz + {3} * interval '1 microsecond'")
    moments = [ask(at, s, done + share) for s, (done, last) in behind.items() if last - done > share]
    moment = min(each for each in moments if each is not None)
    cut = {
        shard_id: ask(found, shard_id, done, min(done + share, last), moment) or done
        for shard_id, (done, last) in behind.items()
    }
    return Position(end.incarnation, {**end.shards, **cut})


def _failure(error: Exception) -> Exception:
    state = getattr(error, "sqlstate", None) or ""
    text = str(error).strip().splitlines()[-1] if str(error).strip() else repr(error)
    if state == "42501":
        return JournalRefused(f"no right to read the journal ({text}): GRANT rota_reader TO your login")
    if state in ("42P01", "42703", "3F000"):
        return JournalRefused(_OLD_SCHEMA.format(text))
    if state.startswith("28") or "authentication" in text:
        return JournalRefused(f"Postgres refuses the login: {text}")
    return JournalUnreachable(f"Postgres cannot be read: {text}")
