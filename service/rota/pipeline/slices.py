"""Slices of bronze: the lines that some batches brought, read by buckets of shards, in the order that a fold needs.

A group has one shard, so its lines and its carried state are in one bucket. Tasks that have other buckets never need
each other's lines, and a refresh writes the state of no bucket but those that its lines are of.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from rota.pipeline.committed import COMMITS
from rota.pipeline.files import File
from rota.pipeline.lake import Lake
from rota.pipeline.places import read_file, rows_of
from rota.pipeline.tables import BRONZE

BUCKETS = 64
RANGES = 8
"""Row groups of bronze are of one range of buckets each, so that a task reads hardly more than it wants. There are so
many ranges at least."""


def bucket_of(shard_id: int) -> int:
    return shard_id % BUCKETS


def range_count(tasks: int) -> int:
    """Into how many ranges to write where so many tasks share the buckets: each reads the row groups of its own."""
    ranges = RANGES
    while ranges < min(tasks, BUCKETS):
        ranges *= 2
    return ranges


def ranges_of(shard_ids: Any, ranges: int) -> Any:
    """The range of each of these shards, a NumPy array, out of so many."""
    return shard_ids % BUCKETS // (BUCKETS // ranges)


@dataclass(frozen=True, slots=True)
class Slice:
    """The lines of the batches after `after_batch` up to `to_batch`, which are in these files."""

    files: tuple[File, ...]
    after_batch: int
    to_batch: int

    @classmethod
    def of(cls, lake: Lake, after_batch: int, to_batch: int) -> Slice:
        """Files are skipped where their statistics show none of these batches."""
        return cls(_reached(lake.bronze.files(), after_batch, to_batch), after_batch, to_batch)

    @property
    def most_lines(self) -> int:
        """The files may have lines of other batches, too."""
        return sum(each.rows for each in self.files)

    @property
    def buckets(self) -> list[int]:
        """All that these lines may be of."""
        return sorted({bucket_of(shard_id) for shard_id in self._shards(range(BUCKETS))})

    def chunks(self, most_lines: int) -> Iterator[Slice]:
        """The same lines in slices that follow one another, of about so many lines."""
        after, lines = self.after_batch, 0
        for each in sorted(self.files, key=lambda each: _last_batch(each, self.to_batch)):
            lines += each.rows
            last = min(_last_batch(each, self.to_batch), self.to_batch)
            if lines >= most_lines and last > after:
                yield Slice(_reached(self.files, after, last), after, last)
                after, lines = last, 0
        if after < self.to_batch:
            yield Slice(_reached(self.files, after, self.to_batch), after, self.to_batch)

    def read(self, buckets: Collection[int], columns: Sequence[str], *, commits: bool) -> pa.Table:
        """The lines of these buckets, in no order: those of commits, or all others."""
        if not self.files:
            return BRONZE.schema.empty_table().select(list(columns))
        wanted = (ds.field("ingest_batch") > self.after_batch) & (ds.field("ingest_batch") <= self.to_batch)
        wanted &= ds.field("kind") == COMMITS if commits else ds.field("kind") != COMMITS
        if len(buckets) < BUCKETS:
            wanted &= ds.field("shard_id").isin(self._shards(buckets))
        lines = rows_of([each.uri for each in self.files], BRONZE.schema)
        return lines.to_table(columns=list(columns), filter=wanted, use_threads=False)

    def _shards(self, buckets: Collection[int]) -> list[int]:
        found: set[int] = set()
        for each in self.files:
            first, last = each.least.get("shard_id"), each.greatest.get("shard_id")
            if first is None or last is None:
                # A file that was written without statistics.
                column = read_file(each.uri, columns=["shard_id"]).column("shard_id")
                found |= set(column.unique().to_pylist())
            else:
                found |= set(range(first, last + 1))
        return sorted(shard_id for shard_id in found if bucket_of(shard_id) in buckets)


def in_order(lines: pa.Table) -> pa.Table:
    """The lines of each group together, by their numbers."""
    lines = lines.combine_chunks()
    keys = [lines.column("seq").to_numpy(), *(_codes(lines.column(name)) for name in ("group_id", "namespace"))]
    return lines.take(np.lexsort((*keys, lines.column("shard_id").to_numpy())))


def _codes(column: pa.ChunkedArray) -> Any:
    """A number for each text."""
    if not len(column):
        return np.array([], np.int32)
    return column.combine_chunks().dictionary_encode().indices.to_numpy()


def _reached(files: Sequence[File], after_batch: int, to_batch: int) -> tuple[File, ...]:
    return tuple(each for each in files if each.has_between("ingest_batch", after_batch + 1, to_batch))


def _last_batch(file: File, otherwise: int) -> int:
    return int(file.greatest.get("ingest_batch", otherwise))
