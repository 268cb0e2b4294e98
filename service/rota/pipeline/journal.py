"""Reading a store's journal as Arrow batches, without Spark and without the service: Postgres by ADBC, SQLite by hand.

Readers only read: each transaction says so, and a hot standby will do. Nothing here imports more of Rota than names,
because this runs on Spark's executors.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

import pyarrow as pa

from rota.passwords import split_password_file
from rota.pipeline.events import EVENTS
from rota.pipeline.failures import JournalRefused
from rota.pipeline.positions import Heads, Position, Span


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
        """The lines of these spans, in no order. `LinesMissing` if one is not there, at the end at the latest."""

    def up_to(self, start: Position, end: Position, lines: int) -> Position:
        """A position between `start` and `end`, about `lines` lines on, that is one moment in all shards."""

    def bookmark(self, reader: str, position: Position) -> None:
        """Say that `reader` has read up to there, so that pruning stays behind it."""


def open_journal(url: str) -> Journal:
    """The journal of the store at `sqlite:///…` or `postgresql://…[?password_file=PATH]`."""
    scheme, _, rest = url.partition("://")
    # Each brings a driver that the other does not need, and both need what this module says.
    from rota.pipeline.postgres_journal import PostgresJournal
    from rota.pipeline.sqlite_journal import SqliteJournal

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
