"""The folder of tables: what stands where, and which batch each table is at.

    lake.json                which journal this is, in which format, made by which release
    plans/ingest/7.json      what batch 7 reads, written before it is read; so is plans/gold/7.json for the facts
    bronze/events/           the journal's lines
    gold/<table>/            the facts, and `carry`: what is still open

A batch counts once its table says that it is at that number; its plan is then what was read. A plan whose number no
table has reached was not carried out, whatever files it left behind. The facts' batches are called folds. A fold
commits `carry` last, so the newest fold of `carry` is the last one that is complete: readers take each table as it was
then.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rota.pipeline.atomic import write_atomically
from rota.pipeline.delta import DeltaFiles
from rota.pipeline.failures import LakeBusy, LakeRefused
from rota.pipeline.files import Files
from rota.pipeline.parquet import ParquetFiles
from rota.pipeline.positions import Position
from rota.pipeline.tables import BRONZE, CARRY, CURRENT, FOLDED, GOLD, Table

LAKE_VERSION = 5
"""Goes up when tables or carried states change their form: older tables are then built anew from bronze."""
RESUMED = frozenset({4})
"""Earlier forms whose tables can be added to as they are, and whose carried states this release goes on from."""

_TABLES = {**GOLD, **CURRENT, "carry": CARRY}
_OF_FOLDS = {*FOLDED, *CURRENT, "carry"}
"""Tables whose batches are folds."""

FORMATS = ("delta", "parquet")

FOLDS = "gold"
"""The job whose plans are those of the facts."""

_KEPT_PLANS = 10
"""Of each job: only that of the last batch is read again. Its first plan stays, too: it says where bronze began."""


class Lake:
    """The tables below one folder, of one journal. Local or mounted: the lock and the pointers are files."""

    def __init__(self, root: Path, format_: str, incarnation: str, version: int = LAKE_VERSION) -> None:
        self.root = root
        self.format = format_
        self.incarnation = incarnation
        self.version = version
        """The form that the tables have."""
        self._tables: dict[Path, Files] = {}

    @classmethod
    def open(cls, root: Path, *, older: bool = False) -> Lake:
        """The tables that are there; `LakeRefused` if there are none, or of another release: `older` allows one."""
        described = root / "lake.json"
        if not described.is_file():
            raise LakeRefused(f"there are no tables in {root}: run `rota pipeline ingest` first")
        document = json.loads(described.read_text())
        if document["version"] > LAKE_VERSION:
            raise LakeRefused(
                f"the tables in {root} were made by a later release (form {document['version']}, "
                f"this one knows {LAKE_VERSION}): upgrade rota"
            )
        if document["version"] < LAKE_VERSION and not older:
            raise LakeRefused(f"the tables in {root} were made by an earlier release: run `rota pipeline backfill`")
        return cls(root, document["format"], document["incarnation"], document["version"])

    @classmethod
    def create(cls, root: Path, format_: str, incarnation: str) -> Lake:
        """The same, made where there are none yet."""
        described = root / "lake.json"
        if not described.is_file():
            root.mkdir(parents=True, exist_ok=True)
            if any(each.name != "lock" for each in root.iterdir()):
                raise LakeRefused(f"{root} holds something else: name an empty folder")
            cls(root, format_, incarnation).describe()
        return cls.open(root)

    def describe(self) -> None:
        """Say that the tables have this release's form."""
        document = {"version": LAKE_VERSION, "format": self.format, "incarnation": self.incarnation}
        write_atomically(self.root / "lake.json", document)
        self.version = LAKE_VERSION

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only process that writes here; `LakeBusy` while another one does."""
        with open(self.root / "lock", "w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise LakeBusy(f"another process is writing to the tables in {self.root}") from error
            yield

    # --- tables ---------------------------------------------------------------------------------

    @property
    def bronze(self) -> Files:
        return self._files(self.root / "bronze" / "events", BRONZE)

    def gold(self, table: str) -> Files:
        """A table of facts, or `carry`."""
        return self._files(self.root / "gold" / table, _TABLES[table])

    def _files(self, path: Path, table: Table) -> Files:
        # A Delta table that is known reads only what has been committed since.
        if path not in self._tables:
            made = DeltaFiles if self.format == "delta" else ParquetFiles
            self._tables[path] = made(path, table.schema)
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

    def remove_builds(self) -> None:
        """Delete the facts of releases that kept them in `gold/build-7/`."""
        for folder in (self.root / "gold").glob("build-*"):
            shutil.rmtree(folder)
            shutil.rmtree(self.root / "plans" / folder.name, ignore_errors=True)
        (self.root / "gold" / "CURRENT").unlink(missing_ok=True)

    # --- plans ------------------------------------------------------------------------------------

    def plan(self, job: str, number: int) -> dict[str, Any] | None:
        """What this batch was meant to read; None if it is not there."""
        path = self._plan_path(job, number)
        return json.loads(path.read_text()) if path.is_file() else None

    def write_plan(self, job: str, number: int, plan: Mapping[str, Any]) -> None:
        write_atomically(self._plan_path(job, number), plan)
        if number - _KEPT_PLANS > 1:
            self._plan_path(job, number - _KEPT_PLANS).unlink(missing_ok=True)

    def _plan_path(self, job: str, number: int) -> Path:
        return self.root / "plans" / job / f"{number}.json"

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
        """The identities of the last lines that were read; none of shards that an earlier release read last."""
        plan = self.plan("ingest", self.bronze.batch) or {}
        return {int(shard_id): identity for shard_id, identity in plan.get("last", {}).items()}

    def read_at(self) -> float | None:
        """When the last batch was read, in seconds since 1970; None before the first."""
        path = self._plan_path("ingest", self.bronze.batch)
        return path.stat().st_mtime if path.is_file() else None

    def ingested(self) -> tuple[int, Position]:
        """The number of the last batch that is in bronze, and how far the journal was read with it."""
        batch = self.bronze.batch
        if batch == 0:
            return 0, Position(self.incarnation, {})
        plan = self.plan("ingest", batch)
        if plan is None:
            raise LakeRefused(f"the plan of batch {batch} is gone from {self.root}: restore the whole folder")
        return batch, Position.decode(plan["end"])


@dataclass(frozen=True, slots=True)
class Moment:
    """The files of all tables as of one fold. They stay for as long as `vacuum` leaves them: a week, as a rule."""

    fold: int
    files: Mapping[str, Sequence[str]]

    def fact_files(self, table: str) -> Sequence[str]:
        return self.files[table]
