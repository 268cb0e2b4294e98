"""The store of the workers' results, which checks fences as a user's own store can."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self

_SCHEMA = """
    CREATE TABLE fences (partition INTEGER PRIMARY KEY, generation INTEGER NOT NULL);
    CREATE TABLE counted (
        partition INTEGER, position INTEGER, file TEXT NOT NULL, words INTEGER NOT NULL,
        worker TEXT NOT NULL, generation INTEGER NOT NULL, PRIMARY KEY (partition, position)
    );
"""


class Fenced(Exception):
    """A later generation has this partition: the caller must stop."""


class Results:
    """One row for each file of each round. A partition accepts only its highest generation so far.

    The check and the write are one transaction. That is enough: for members without an instance id, the generation
    distinguishes each holder from the previous one.
    """

    def __init__(self, path: Path) -> None:
        # Statements are sequential, but from several threads of the process.
        self._database = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)

    @classmethod
    def create(cls, path: Path, partitions: int) -> Results:
        """Create a store in which every partition is free."""
        results = cls(path)
        results._database.execute("PRAGMA journal_mode = WAL")
        results._database.executescript(_SCHEMA)
        results._database.executemany("INSERT INTO fences VALUES (?, 0)", [(number,) for number in range(partitions)])
        return results

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.close()

    def take(self, partition: int, generation: int) -> int:
        """Raise the partition's fence, which excludes all previous holders; return the number of finished files."""
        with self._fenced(partition, generation):
            return self._done(partition)

    def add(self, partition: int, position: int, file: str, words: int, worker: str, generation: int) -> None:
        """Store one file's count; raise `Fenced` if a later generation has the partition."""
        with self._fenced(partition, generation):
            row = (partition, position, file, words, worker, generation)
            self._database.execute("INSERT INTO counted VALUES (?, ?, ?, ?, ?, ?)", row)

    def totals(self) -> tuple[int, int]:
        """Return how many files were counted, and how many words they have."""
        with closing(self._database.execute("SELECT count(*), coalesce(sum(words), 0) FROM counted")) as rows:
            files, words = rows.fetchone()
        return files, words

    def by_worker(self) -> dict[str, int]:
        """Return how many files each worker has counted."""
        with closing(self._database.execute("SELECT worker, count(*) FROM counted GROUP BY worker ORDER BY 1")) as rows:
            return dict(rows.fetchall())

    def _done(self, partition: int) -> int:
        query = "SELECT count(*) FROM counted WHERE partition = ?"
        with closing(self._database.execute(query, (partition,))) as rows:
            return int(rows.fetchone()[0])

    def _fenced(self, partition: int, generation: int) -> _Transaction:
        return _Transaction(self._database, partition, generation)


class _Transaction:
    """A transaction that first raises the fence, or else fails."""

    def __init__(self, database: sqlite3.Connection, partition: int, generation: int) -> None:
        self._database = database
        self._partition = partition
        self._generation = generation

    def __enter__(self) -> None:
        self._database.execute("BEGIN IMMEDIATE")
        raised = self._database.execute(
            "UPDATE fences SET generation = ? WHERE partition = ? AND generation <= ?",
            (self._generation, self._partition, self._generation),
        )
        if not raised.rowcount:
            self._database.execute("ROLLBACK")
            raise Fenced(f"partition {self._partition} belongs to a generation after {self._generation}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.execute("ROLLBACK" if error else "COMMIT")
