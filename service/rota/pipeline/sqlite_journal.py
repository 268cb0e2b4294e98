"""The journal of an embedded store: a file that is opened read-only, and may be in use by a server."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa

from rota.pipeline.failures import JournalRefused, JournalUnreachable
from rota.pipeline.journal import Wanted
from rota.pipeline.positions import Heads, Position, Span
from rota.pipeline.queries import (
    BOOKMARK,
    HEADS,
    OLD_SCHEMA,
    STORE,
    GapCheck,
    aligned,
    bookmark_values,
    condition,
    heads_of,
    schema_of,
)

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

    def up_to(self, start: Position, end: Position, lines: int) -> Position:
        with self._reading() as connection:

            def ask(sql: str, *values: int) -> int | None:
                answer = connection.execute(sql.format(events="group_events"), values).fetchone()[0]
                return None if answer is None else int(answer)

            return aligned(start, end, lines, ask, "?")

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
