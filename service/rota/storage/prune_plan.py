"""Which journal lines pruning may delete: pure, for the stores and for the simulator alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

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
    """The last line of a shard that every reader has read; `last` where none is registered."""
    return min((each.read(shard_id) for each in readers), default=last)
