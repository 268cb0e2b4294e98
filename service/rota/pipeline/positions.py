"""How far a journal was read: a position is the journal's incarnation and the last line read of each shard."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rota.pipeline.failures import LinesMissing, WrongIncarnation

LINES_PER_TASK = 250_000
"""Enough to be worth a file and a connection, few enough that all cores have some."""

PRUNED_HINT = (
    "read a later range, or give the pipeline a name with `rota journal readers` so that pruning waits for it; "
    "`rota pipeline run --skip-pruned` goes on behind the hole"
)


@dataclass(frozen=True, slots=True)
class Position:
    """All lines up to `shards[shard_id]` have been read; a shard that is not named has been read up to 0."""

    incarnation: str
    shards: Mapping[int, int]

    @classmethod
    def decode(cls, value: str | Mapping[str, Any]) -> Position:
        """From JSON with text as keys. In Spark's form numbers may be text, and before the first batch it is null."""
        document = json.loads(value) if isinstance(value, str) else value
        if document is None:
            return cls("", {})
        shards = {int(shard_id): int(seq) for shard_id, seq in document["shards"].items()}
        return cls(str(document["incarnation"]), shards)

    def encode(self) -> dict[str, Any]:
        return {"incarnation": self.incarnation, "shards": {str(s): self.shards[s] for s in sorted(self.shards)}}

    def __str__(self) -> str:
        return json.dumps(self.encode(), separators=(",", ":"))

    @property
    def lines(self) -> int:
        return sum(self.shards.values())


@dataclass(frozen=True, slots=True)
class Heads:
    """Which lines a journal holds, as of one moment: `first_seq` to `last_seq` of each shard."""

    incarnation: str
    shard_count: int
    first_seq: Mapping[int, int]
    last_seq: Mapping[int, int]

    @property
    def start(self) -> Position:
        """Before the first line that is still there."""
        return Position(self.incarnation, {shard_id: seq - 1 for shard_id, seq in self.first_seq.items()})

    @property
    def end(self) -> Position:
        return Position(self.incarnation, dict(self.last_seq))

    def check(self, position: Position) -> None:
        """Whether this journal can be read on from there; says which range cannot, or that it is another journal."""
        if position.incarnation != self.incarnation:
            raise WrongIncarnation(
                f"this journal is {self.incarnation}, but the lines read before are of {position.incarnation}: the "
                "store was made anew or is another one; use another folder of tables for it"
            )
        for shard_id in sorted(position.shards.keys() | self.last_seq.keys()):
            self._check_shard(shard_id, position.shards.get(shard_id, 0))

    def behind_pruned(self, done: Position) -> Position:
        """The same position, except for shards with pruned next lines: they go on with the first that is there."""
        shards = dict(done.shards)
        for shard_id, first in self.first_seq.items():
            shards[shard_id] = max(shards.get(shard_id, 0), first - 1)
        return Position(done.incarnation, shards)

    def check_spans(self, spans: Sequence[Span]) -> None:
        """Raise `LinesMissing` if lines of these spans may have been pruned while they were read. AFTER they were read.

        For reads that take some lines only: there a missing line does not differ from one that is not wanted.
        """
        for span in spans:
            first = self.first_seq.get(span.shard_id, 1)
            if span.first < first:
                raise LinesMissing(
                    f"shard {span.shard_id}: lines {span.first} to {min(first - 1, span.last)} were pruned before they "
                    f"were read: {PRUNED_HINT}"
                )

    def _check_shard(self, shard_id: int, read: int) -> None:
        last, first = self.last_seq.get(shard_id, 0), self.first_seq.get(shard_id, 1)
        if shard_id >= self.shard_count or read > last:
            raise WrongIncarnation(
                f"shard {shard_id} was read up to line {read}, but the journal ends at {last}: the store was restored "
                "to an earlier moment, so its later lines are not those that were read; use another folder of tables"
            )
        if read + 1 < first and read < last:
            raise LinesMissing(
                f"shard {shard_id}: lines {read + 1} to {first - 1} were pruned before they were read: {PRUNED_HINT}"
            )


@dataclass(frozen=True, slots=True)
class Span:
    """The lines `first` to `last` of a shard, both included."""

    shard_id: int
    first: int
    last: int

    @property
    def lines(self) -> int:
        return self.last - self.first + 1


def spans_between(start: Position, end: Position) -> list[Span]:
    """What has to be read to come from one position to another."""
    found = ((shard_id, start.shards.get(shard_id, 0) + 1, end.shards[shard_id]) for shard_id in sorted(end.shards))
    return [Span(shard_id, first, last) for shard_id, first, last in found if first <= last]


def packed(spans: Sequence[Span], lines_per_task: int) -> list[list[Span]]:
    """The same lines in tasks of about one size, each of which has its part of every span.

    Shards are written at the same time, so the lines of one part lie in the same pages of the store: each page is read
    by one task, and not by all.
    """
    tasks: list[list[Span]] = [[] for _ in range(-(-sum(span.lines for span in spans) // lines_per_task))]
    over = 0
    for span in spans:
        each, rest = divmod(span.lines, len(tasks))
        first = span.first
        for number, task in enumerate(tasks):
            # What does not go up goes to task after task, so that many short spans make tasks of one size, too.
            lines = each + ((number - over) % len(tasks) < rest)
            if lines:
                task.append(Span(span.shard_id, first, first + lines - 1))
            first += lines
        over += rest
    return tasks
