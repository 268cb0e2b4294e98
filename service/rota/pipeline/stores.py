"""The journals of both stores: an embedded one in a file, and one in Postgres, read by ADBC."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from rota.pipeline.failures import JournalRefused, JournalUnreachable
from rota.pipeline.journal import (
    BOOKMARK,
    HEADS,
    OLD_SCHEMA,
    STORE,
    GapCheck,
    Heads,
    Position,
    Span,
    Wanted,
    bookmark_values,
    condition,
    heads_of,
    literal,
    schema_of,
)
from rota.storage.urls import with_password

_BATCH_ROWS = 20_000


class SqliteJournal:
    """The embedded store's file. It is opened read-only, and may be in use by a server."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def heads(self) -> Heads:
        with self._reading() as connection:
            connection.execute("BEGIN")
            rows = connection.execute(HEADS.format(shards="shards", store="store")).fetchall()
            return heads_of(rows, connection.execute(STORE.format(store="store")).fetchall())

    def schema_version(self) -> str:
        with self._reading() as connection:
            return str(connection.execute("SELECT version_num FROM alembic_version").fetchone()[0])

    def batches(self, spans: Sequence[Span], wanted: Wanted) -> Iterator[pa.RecordBatch]:
        schema = schema_of(wanted)
        columns = ", ".join("at * 1000" if name == "at" else name for name in schema.names)
        for span in spans:
            check = GapCheck((span,), wanted)
            with self._reading() as connection:
                sql, values = condition(wanted, "?")
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
        if wanted.is_partial:
            self.heads().check_spans(spans)

    def bookmark(self, reader: str, position: Position) -> None:
        with self._connected("rw") as connection, connection:
            now = "CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)"
            connection.execute(
                BOOKMARK.format(table="journal_readers", now=now, p="?"), bookmark_values(reader, position)
            )

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
                raise JournalRefused(OLD_SCHEMA.format(error)) from error
            raise JournalUnreachable(f"the store at {self._path} cannot be read: {error}") from error
        except sqlite3.DatabaseError as error:
            raise JournalRefused(f"{self._path} is no store: {error}") from error


STATEMENT_TIMEOUT = "30min"
"""Longer than any sane task; a reader that was forgotten does not hold back Postgres's vacuum for ever."""


class PostgresJournal:
    """A Postgres, primary or standby. The password is in the file, or in libpq's PGPASSFILE or PGSERVICE."""

    def __init__(self, dsn: str, password_file: Path | None = None) -> None:
        self._dsn = dsn
        self._password_file = password_file

    def heads(self) -> Heads:
        with self._cursor() as cursor:
            cursor.execute(HEADS.format(shards="rota.shards", store="rota.store"))
            rows = cursor.fetchall()
            cursor.execute(STORE.format(store="rota.store"))
            return heads_of(rows, cursor.fetchall())

    def schema_version(self) -> str:
        with self._cursor() as cursor:
            cursor.execute("SELECT version_num FROM rota.alembic_version")
            return str(cursor.fetchone()[0])

    def batches(self, spans: Sequence[Span], wanted: Wanted) -> Iterator[pa.RecordBatch]:
        if not spans:
            return
        with self._cursor() as cursor:
            # Spark's tasks run side by side: Postgres's own workers would copy each line once more.
            cursor.execute("SET LOCAL max_parallel_workers_per_gather = 0")
            # To compile a condition of hundreds of spans takes longer than to read by it.
            cursor.execute("SET LOCAL jit = off")
            check, schema = GapCheck(spans, wanted), schema_of(wanted)
            places = " OR ".join(f"(shard_id = {s.shard_id} AND seq BETWEEN {s.first} AND {s.last})" for s in spans)
            cursor.execute(
                f"SELECT {', '.join(schema.names)} FROM rota.group_events"
                f" WHERE ({places}){condition(wanted, 'literal')[0]}"
            )
            for rows in cursor.fetch_record_batch():
                arrays = [rows.column(field.name).cast(field.type) for field in schema]
                yield check.seen(pa.RecordBatch.from_arrays(arrays, schema=schema))
            check.finish()
        if wanted.is_partial:
            self.heads().check_spans(spans)

    def bookmark(self, reader: str, position: Position) -> None:
        with self._cursor(writes=True) as cursor:
            name, incarnation, positions = (literal(value) for value in bookmark_values(reader, position))
            now = "CAST(extract(epoch from clock_timestamp()) * 1000 AS BIGINT)"
            sql = BOOKMARK.format(table="rota.journal_readers", now=now, p="{}")
            cursor.execute(sql.format(name, incarnation, positions))

    @contextmanager
    def _cursor(self, *, writes: bool = False) -> Iterator[Any]:
        """A cursor in a transaction with settings that end with it, so that it works through a pooler, too."""
        import adbc_driver_manager
        from adbc_driver_postgresql import dbapi

        try:
            with dbapi.connect(self._dsn_now()) as connection, connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ" + ("" if writes else " READ ONLY"))
                cursor.execute(f"SET LOCAL statement_timeout = '{STATEMENT_TIMEOUT}'")
                yield cursor
                connection.commit()
        except adbc_driver_manager.Error as error:
            raise _failure(error) from error

    def _dsn_now(self) -> str:
        if self._password_file is None:
            return self._dsn
        try:
            return with_password(self._dsn, self._password_file)
        except OSError as error:
            raise JournalUnreachable(f"the password of Postgres cannot be read: {error}") from error


def _failure(error: Exception) -> Exception:
    state = getattr(error, "sqlstate", None) or ""
    text = " ".join(str(error).split()) or repr(error)
    if state == "42501":
        return JournalRefused(f"no right to read the journal ({text}): GRANT rota_reader TO your login")
    if state in ("42P01", "42703", "3F000"):
        return JournalRefused(OLD_SCHEMA.format(text))
    if state.startswith("28") or "authentication" in text:
        return JournalRefused(f"Postgres refuses the login: {text}")
    return JournalUnreachable(f"Postgres cannot be read: {text}")
