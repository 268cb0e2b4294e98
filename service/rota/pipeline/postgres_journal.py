"""The journal in Postgres, read with COPY into Arrow by ADBC, and its refusals in our words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from rota.passwords import with_password
from rota.pipeline.failures import JournalRefused, JournalUnreachable
from rota.pipeline.journal import Wanted
from rota.pipeline.packed_lines import PackedLines
from rota.pipeline.positions import Heads, Position, Span
from rota.pipeline.queries import (
    BOOKMARK,
    HEADS,
    OLD_SCHEMA,
    STORE,
    GapCheck,
    aligned,
    bookmark_values,
    heads_of,
    literal,
)

STATEMENT_TIMEOUT = "30min"
"""Longer than any sane task; a reader that was forgotten does not hold back Postgres's vacuum for ever."""

_BATCH_BYTES = {"adbc.postgresql.batch_size_hint_bytes": str(4 * 1024 * 1024)}
"""Of the driver's own 16 MiB each batch is new memory to the kernel, which costs a tenth of the reading."""


class PostgresJournal:
    """A Postgres, primary or standby. The password is in the file, or where libpq looks: PGPASSFILE, PGSERVICE, DSN."""

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
            cursor.adbc_statement.set_options(**_BATCH_BYTES)
            # Tasks are what works side by side: Postgres's own workers would copy each line once more.
            cursor.execute("SET LOCAL max_parallel_workers_per_gather = 0")
            # Compiling a condition of hundreds of spans for each partition takes longer than reading by it.
            cursor.execute("SET LOCAL jit = off")
            check = GapCheck(spans, wanted)
            lines = PackedLines(spans, wanted)
            cursor.execute(lines.query)
            for rows in cursor.fetch_record_batch():
                for batch in lines.unpacked(rows):
                    yield check.seen(batch)
            for query in lines.queries_of_long:
                cursor.execute(query)
                for rows in cursor.fetch_record_batch():
                    yield check.seen(lines.as_they_are(rows))
            check.finish()
        if wanted.is_partial:
            self.heads().check_spans(spans)

    def up_to(self, start: Position, end: Position, lines: int) -> Position:
        with self._cursor() as cursor:

            def ask(sql: str, *values: int) -> int | None:
                cursor.execute(sql.format(*values, events="rota.group_events"))
                answer = cursor.fetchone()[0]
                return None if answer is None else int(answer)

            return aligned(start, end, lines, ask, "literal")

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

        try:
            with _connected(self._dsn_now()) as connection, connection.cursor() as cursor:
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


def _connected(dsn: str) -> Any:
    """A new connection, as the driver's `connect` makes it, but for its database, which is made once."""
    from adbc_driver_manager import AdbcConnection, dbapi

    lasting: Any = _Lasting()
    return dbapi.Connection(lasting, AdbcConnection(_database(dsn)))


@lru_cache(maxsize=4)
def _database(dsn: str) -> Any:
    """The driver's object of a database: it has no connection, but reads all types when it is made, 35 ms of CPU."""
    from adbc_driver_postgresql import connect

    return connect(dsn)


class _Lasting:
    """What a connection closes with itself in place of its database."""

    def close(self) -> None:
        """Keep the database for the next connection."""


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
