"""The folder of tables: what stands where, and which batch each table is at.

    lake.json                which journal this is, in which format, made by which release
    plans/ingest/7.json      what batch 7 reads, written before it is read; so is plans/gold/7.json for the facts
    bronze/events/           the journal's lines
    gold/<table>/            the facts, and `carry`: the open rows

A batch counts once its table says that it is at that number; its plan then has the lines that were read. A plan with a
number that no table has reached was not carried out, whatever files it left behind. The facts' batches are called
folds. A fold commits `carry` last, so the newest fold of `carry` is the last one that is complete: readers take each
table as it was then.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rota.pipeline.delta import DeltaFiles
from rota.pipeline.failures import LakeRefused
from rota.pipeline.files import Files
from rota.pipeline.parquet import ParquetFiles
from rota.pipeline.places import is_remote, place_at
from rota.pipeline.positions import Position
from rota.pipeline.tables import BRONZE, CARRY, CURRENT, FOLDED, GOLD, Table

LAKE_VERSION = 5
"""Goes up when tables or carried states change their form: older tables are then built anew from bronze."""

_TABLES = {**GOLD, **CURRENT, "carry": CARRY}
_OF_FOLDS = {*FOLDED, *CURRENT, "carry"}
"""Tables with folds as batches."""

FORMATS = ("delta", "parquet")

FOLDS = "gold"
"""The job that makes the plans of the facts."""

_DESCRIBED = "lake.json"
_KEPT_PLANS = 10
"""Of each job: only that of the last batch is read again. Its first plan stays, too: it says where bronze began."""


class Lake:
    """The tables at one place, of one journal: below a folder, or a prefix in an object store."""

    def __init__(self, root: str | Path, format_: str, incarnation: str, version: int = LAKE_VERSION) -> None:
        self.place = place_at(root)
        self.root = self.place.url
        self.format = format_
        self.incarnation = incarnation
        self.version = version
        """The form that the tables have."""
        self._tables: dict[str, Files] = {}

    @classmethod
    def open(cls, root: str | Path, *, older: bool = False) -> Lake:
        """The tables that are there; `LakeRefused` if there are none, or of another release: `older` allows one."""
        described = place_at(root).read(_DESCRIBED)
        if described is None:
            raise LakeRefused(f"there are no tables in {root}: run `rota pipeline ingest` first")
        document = json.loads(described)
        if document["version"] > LAKE_VERSION:
            raise LakeRefused(
                f"the tables in {root} were made by a later release (form {document['version']}, "
                f"this one knows {LAKE_VERSION}): upgrade rota"
            )
        if document["version"] < LAKE_VERSION and not older:
            raise LakeRefused(f"the tables in {root} were made by an earlier release: run `rota pipeline backfill`")
        return cls(root, document["format"], document["incarnation"], document["version"])

    @classmethod
    def exists(cls, root: str | Path) -> bool:
        """Whether there are tables."""
        return place_at(root).read(_DESCRIBED) is not None

    @classmethod
    def create(cls, root: str | Path, format_: str, incarnation: str) -> Lake:
        """The same, made where there are none yet."""
        if not cls.exists(root):
            if not place_at(root).is_empty():
                raise LakeRefused(f"{root} holds something else: name an empty folder")
            if is_remote(str(root)) and format_ != "delta":
                raise LakeRefused("plain files need a folder: in an object store, tables are Delta tables")
            cls(root, format_, incarnation).describe()
        return cls.open(root)

    def describe(self) -> None:
        """Say that the tables have this release's form."""
        document = {"version": LAKE_VERSION, "format": self.format, "incarnation": self.incarnation}
        self.place.write(_DESCRIBED, json.dumps(document))
        self.version = LAKE_VERSION

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only process that writes here; `LakeBusy` while another one does."""
        with self.place.locked() as overtakes:
            if overtakes:
                for table in (self.bronze, *map(self.gold, _TABLES)):
                    table.fence()
            yield

    # --- tables ---------------------------------------------------------------------------------

    @property
    def bronze(self) -> Files:
        return self._files(f"{self.root}/bronze/events", BRONZE)

    def gold(self, table: str) -> Files:
        """A table of facts, or `carry`."""
        return self._files(f"{self.root}/gold/{table}", _TABLES[table])

    def _files(self, path: str, table: Table) -> Files:
        # A Delta table that is known reads only what has been committed since.
        if path not in self._tables:
            delta = self.format == "delta"
            made = DeltaFiles(path, table.schema, self.place) if delta else ParquetFiles(path, table.schema)
            self._tables[path] = made
        return self._tables[path]

    def fact_files(self, table: str) -> list[str]:
        """The files of a table as of the last complete fold."""
        return self.gold(table).uris(self.gold("carry").batch if table in _OF_FOLDS else None)

    def moment(self) -> Moment:
        """All tables as of one complete fold, whatever is folded, compacted or made anew meanwhile."""
        while True:
            fold = self.gold("carry").batch
            files = {table: self.gold(table).uris(fold if table in _OF_FOLDS else None) for table in _TABLES}
            if self.gold("carry").batch == fold:
                return Moment(fold, files)

    # --- plans ------------------------------------------------------------------------------------

    def plan(self, job: str, number: int) -> dict[str, Any] | None:
        """What this batch was meant to read; None if it is not there."""
        written = self.place.read(_plan_name(job, number))
        return None if written is None else json.loads(written)

    def write_plan(self, job: str, number: int, plan: Mapping[str, Any]) -> None:
        self.place.write(_plan_name(job, number), json.dumps(plan))
        if number - _KEPT_PLANS > 1:
            self.place.remove(_plan_name(job, number - _KEPT_PLANS))

    def began(self) -> Position:
        """Where the first batch of bronze began."""
        plan = self.plan("ingest", 1)
        return Position.decode(plan["start"]) if plan else Position(self.incarnation, {})

    def folded_to(self, fold: int) -> int:
        """The last batch of bronze that a complete fold took in."""
        if not fold:
            return 0
        plan = self.plan(FOLDS, fold)
        if plan is None:
            raise LakeRefused(f"the plan of fold {fold} is gone from {self.root}: restore the whole folder")
        return int(plan["to_batch"])

    def last_lines(self) -> dict[int, str]:
        """The identities of the last lines that were read."""
        plan = self.plan("ingest", self.bronze.batch) or {"last": {}}
        return {int(shard_id): identity for shard_id, identity in plan["last"].items()}

    def read_at(self) -> float | None:
        """When the last batch was read, in seconds since 1970; None before the first."""
        return self.place.written_s(_plan_name("ingest", self.bronze.batch))

    def ingested(self) -> tuple[int, Position]:
        """The number of the last batch that is in bronze, and how far the journal was read with it."""
        batch = self.bronze.batch
        if batch == 0:
            return 0, Position(self.incarnation, {})
        plan = self.plan("ingest", batch)
        if plan is None:
            raise LakeRefused(f"the plan of batch {batch} is gone from {self.root}: restore the whole folder")
        return batch, Position.decode(plan["end"])


def _plan_name(job: str, number: int) -> str:
    return f"plans/{job}/{number}.json"


@dataclass(frozen=True, slots=True)
class Moment:
    """The files of all tables as of one fold. They stay for as long as `vacuum` leaves them: a week, as a rule."""

    fold: int
    files: Mapping[str, Sequence[str]]

    def fact_files(self, table: str) -> Sequence[str]:
        return self.files[table]
