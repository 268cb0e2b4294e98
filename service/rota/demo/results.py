"""The store of the workers' results, which checks fences as a user's own store can."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
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
        query = "SELECT count(*) FROM counted WHERE partition = ?"
        with self._fenced(partition, generation):
            return int(self._database.execute(query, (partition,)).fetchone()[0])

    def add(self, partition: int, position: int, file: str, words: int, worker: str, generation: int) -> None:
        """Store one file's count; raise `Fenced` if a later generation has the partition."""
        with self._fenced(partition, generation):
            row = (partition, position, file, words, worker, generation)
            self._database.execute("INSERT INTO counted VALUES (?, ?, ?, ?, ?, ?)", row)

    def totals(self) -> tuple[int, int]:
        """Return how many files were counted, and how many words they have."""
        files, words = self._database.execute("SELECT count(*), coalesce(sum(words), 0) FROM counted").fetchone()
        return files, words

    def by_worker(self) -> dict[str, int]:
        """Return how many files each worker has counted."""
        return dict(self._database.execute("SELECT worker, count(*) FROM counted GROUP BY worker ORDER BY 1"))

    @contextmanager
    def _fenced(self, partition: int, generation: int) -> Iterator[None]:
        """Run the block in a transaction that first raises the fence, or else fails."""
        self._database.execute("BEGIN IMMEDIATE")
        with self._database:
            raised = self._database.execute(
                "UPDATE fences SET generation = ? WHERE partition = ? AND generation <= ?",
                (generation, partition, generation),
            )
            if not raised.rowcount:
                raise Fenced(f"partition {partition} belongs to a generation after {generation}")
            yield
