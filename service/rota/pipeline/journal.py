"""A store's journal as Arrow batches, read without Spark and without the service, and checked for missing lines.

Readers only read: each transaction says so, and a hot standby will do.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

import pyarrow as pa

from rota.pipeline.failures import JournalRefused, LinesMissing, WrongIncarnation
from rota.pipeline.tables import LINES, lines_of
from rota.storage.urls import split_password_file


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which lines of a span, and which columns of them. Without conditions every line must be there."""

    columns: tuple[str, ...] = tuple(LINES.names)
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
        """The lines of these spans, in no order. `LinesMissing` if one is not there, at the end at the latest."""

    def bookmark(self, reader: str, position: Position) -> None:
        """Say that `reader` has read up to there, so that pruning stays behind it."""


def open_journal(url: str) -> Journal:
    """The journal of the store at `sqlite:///…` or `postgresql://…[?password_file=PATH]`."""
    scheme, _, rest = url.partition("://")
    from rota.pipeline.stores import PostgresJournal, SqliteJournal  # which needs this module

    if scheme in ("postgresql", "postgres"):
        return PostgresJournal(*split_password_file(f"postgresql://{rest}"))
    if scheme == "sqlite" and len(rest) > 1:
        return SqliteJournal(Path(unquote(rest[1:])).expanduser().absolute())
    raise JournalRefused(f"a store's URL is sqlite:///PATH or postgresql://…, not {scheme}://…")


def journal_at(options: Mapping[str, str]) -> Journal:
    """The journal that the options of the data source name: `url`, or `urlEnv`, the variable that holds the URL."""
    variable = options.get("urlEnv", "ROTA_STORE")
    url = options.get("url", "") or os.environ.get(variable, "")
    if not url:
        raise JournalRefused(f"no URL of a journal: set the option url, or the variable {variable}")
    return open_journal(url)


def check_schema(journal: Journal) -> str:
    """The schema's migration; `JournalRefused` if it is of a release that this one does not know."""
    from rota.storage.migrate import revisions  # which executors need not have

    version = journal.schema_version()
    known = revisions()
    if version not in known:
        raise JournalRefused(
            f"the store's schema {version} is of a later release (this one knows {known[-1]}): upgrade rota here, too"
        )
    return version


# --- the parts that both stores share ---------------------------------------------------------------------


HEADS = "SELECT s.shard_id, s.first_seq, s.last_seq, t.incarnation, t.shard_count FROM {shards} AS s, {store} AS t"
STORE = "SELECT incarnation, shard_count FROM {store}"
OLD_SCHEMA = "the store's schema is not this release's ({}): run `rota db upgrade`"
BOOKMARK = (
    "INSERT INTO {table} (reader, incarnation, positions, updated_at_ms) VALUES ({p}, {p}, {p}, {now})"
    " ON CONFLICT (reader) DO UPDATE SET incarnation = excluded.incarnation,"
    " positions = excluded.positions, updated_at_ms = excluded.updated_at_ms"
)


class GapCheck:
    """Counts the lines of spans, each of another shard: a journal is gapless, so missing lines were pruned or lost."""

    def __init__(self, spans: Sequence[Span], wanted: Wanted) -> None:
        self._spans = spans
        self._columns = list(wanted.columns)
        self._checks = not wanted.is_partial
        self._here = bytearray(sum(span.lines for span in spans)) if self._checks else bytearray()
        self._lowest = min(span.shard_id for span in spans)
        self._starts = [0] * (max(span.shard_id for span in spans) - self._lowest + 1)
        """For each shard from the lowest on: where its line 0 would be in `_here`."""
        start = 0
        for span in spans:
            self._starts[span.shard_id - self._lowest] = start - span.first
            start += span.lines

    def seen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Take note of a batch; returns the wanted lines of it."""
        if self._checks:
            import numpy

            starts = numpy.array(self._starts)[batch.column("shard_id").to_numpy() - self._lowest]
            numpy.frombuffer(self._here, dtype=numpy.uint8)[starts + batch.column("seq").to_numpy()] = 1
        return batch.select(self._columns)

    def finish(self) -> None:
        for span in self._spans if self._checks else ():
            start = self._starts[span.shard_id - self._lowest] + span.first
            here = self._here[start : start + span.lines]
            if missing := here.count(0):
                first, last = span.first + here.index(0), span.first + here.rindex(0)
                raise LinesMissing(
                    f"shard {span.shard_id}: {missing} of the lines {first} to {last} are not there, pruned or lost: "
                    f"{PRUNED_HINT}"
                )


def schema_of(wanted: Wanted) -> pa.Schema:
    """The columns that are read: `shard_id` and `seq` in any case, because they show the missing lines."""
    names = [name for name in LINES.names if name in (*wanted.columns, "shard_id", "seq")]
    return pa.schema([LINES.field(name) for name in names])


def condition(wanted: Wanted, style: str) -> tuple[str, list[str]]:
    """The rest of a WHERE clause, with `?` for values or, if the driver takes none, with literals."""
    values = [part for group in wanted.groups for part in group] + list(wanted.kinds)
    place = iter(["?"] * len(values) if style == "?" else map(literal, values))
    parts = []
    if wanted.groups:
        each = [f"(namespace = {next(place)} AND group_id = {next(place)})" for _ in wanted.groups]
        parts.append(f" AND ({' OR '.join(each)})")
    if wanted.kinds:
        parts.append(f" AND kind IN ({', '.join(next(place) for _ in wanted.kinds)})")
    return "".join(parts), values if style == "?" else []


def literal(text: str) -> str:
    """A text as SQL writes it, where `standard_conforming_strings` is on, as it is since Postgres 9.1."""
    return "'" + text.replace("'", "''") + "'"


def heads_of(rows: Sequence[Sequence[Any]], stores: Sequence[Sequence[Any]]) -> Heads:
    if not stores:
        raise JournalRefused("no service ever opened this store: start `rota serve` on it first")
    incarnation, shard_count = stores[0]
    first = {int(shard_id): int(seq) for shard_id, seq, *_ in rows}
    return Heads(str(incarnation), int(shard_count), first, {int(row[0]): int(row[2]) for row in rows})


def bookmark_values(reader: str, position: Position) -> tuple[str, str, str]:
    return reader, position.incarnation, json.dumps(position.encode()["shards"], separators=(",", ":"))


# --- how far a journal was read -------------------------------------------------------------------------------

LINES_PER_TASK = 250_000
"""Enough to be worth a file and a connection, few enough that all cores have some."""

PRUNED_HINT = (
    "read a later range, or give the pipeline a name with `rota journal readers` so that pruning waits for it; "
    "`rota pipeline run --skip-pruned` continues after them"
)


@dataclass(frozen=True, slots=True)
class Position:
    """All lines up to `shards[shard_id]` have been read; a shard that is not named has been read up to 0."""

    incarnation: str
    shards: Mapping[int, int]
    digests: Mapping[int, str] = field(default_factory=dict)
    """A digest of the last line that was read, by shard: a restored store has another line with that number."""

    @classmethod
    def decode(cls, value: str | Mapping[str, Any]) -> Position:
        """From JSON with text as keys. In Spark's form numbers may be text, and before the first batch it is null."""
        document = json.loads(value) if isinstance(value, str) else value
        if document is None:
            return cls("", {})
        shards = {int(shard_id): int(seq) for shard_id, seq in document["shards"].items()}
        digests = {int(shard_id): str(digest) for shard_id, digest in document.get("digests", {}).items()}
        return cls(str(document["incarnation"]), shards, digests)

    def encode(self) -> dict[str, Any]:
        document = {"incarnation": self.incarnation, "shards": {str(s): self.shards[s] for s in sorted(self.shards)}}
        digests = {str(s): self.digests[s] for s in sorted(self.digests)}
        return {**document, "digests": digests} if digests else document

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
        return Position(
            done.incarnation, shards, {s: d for s, d in done.digests.items() if shards[s] == done.shards[s]}
        )

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


def last_lines(journal: Journal, heads: Heads, position: Position) -> dict[int, str]:
    """By shard the digest of the last line up to a position, if that line was not pruned."""
    spans = [Span(s, seq, seq) for s, seq in position.shards.items() if seq >= max(1, heads.first_seq.get(s, 1))]
    found: dict[int, str] = {}
    # A line that is pruned at this very moment is no failure: the next look cannot compare it.
    with suppress(LinesMissing):
        for batch in journal.batches(spans, Wanted()):
            for line in lines_of(batch):
                found[line.shard_id] = blake2b(repr(line).encode(), digest_size=8).hexdigest()
    return found


def check_last_lines(journal: Journal, heads: Heads, position: Position) -> None:
    """Raise `WrongIncarnation` if a last line is not the one that was read: the store was restored, and then used."""
    there = last_lines(journal, heads, position) if position.digests else {}
    for shard_id, digest in position.digests.items():
        if there.get(shard_id, digest) != digest:
            raise WrongIncarnation(
                f"shard {shard_id}: line {position.shards[shard_id]} is not the line that was read before: the store "
                "was restored to an earlier moment and then used; use another folder of tables for it"
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


def cut(start: Position, end: Position, most: int) -> Position:
    """A position about so many lines after `start`, with an equal part of the lines that each shard has up to `end`."""
    spans = spans_between(start, end)
    lines = sum(span.lines for span in spans)
    if lines <= most:
        return end
    last = {span.shard_id: span.first - 1 + max(1, span.lines * most // lines) for span in spans}
    return Position(end.incarnation, {**end.shards, **last})


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
