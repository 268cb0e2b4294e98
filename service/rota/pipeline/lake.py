"""The folder of tables: what stands where, which batch each table is at, and which build of the facts is in use.

    lake.json                which journal this is, in which format, made by which release
    plans/ingest/7.json      what batch 7 reads, written before it is read; so is plans/<build>/7.json for the facts
    bronze/events/           the journal's lines
    gold/CURRENT             the name of the build in use
    gold/<build>/<table>/    its tables, and `carry`: what is still open

A batch counts once its table says that it is at that number; its plan is then what was read. A plan whose number no
table has reached was not carried out, whatever files it left behind.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rota.pipeline.atomic import write_atomically
from rota.pipeline.delta import DeltaFiles
from rota.pipeline.failures import LakeRefused
from rota.pipeline.files import Files
from rota.pipeline.parquet import ParquetFiles
from rota.pipeline.positions import Position
from rota.pipeline.tables import BRONZE, CARRY, GOLD, Table

LAKE_VERSION = 4
"""Goes up when tables or carried states change their form: older tables are then built anew from bronze."""

FORMATS = ("delta", "parquet")


class Lake:
    """The tables below one folder, of one journal. Local or mounted: the lock and the pointers are files."""

    def __init__(self, root: Path, format_: str, incarnation: str) -> None:
        self.root = root
        self.format = format_
        self.incarnation = incarnation

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
        return cls(root, document["format"], document["incarnation"])

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

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only one who writes here; `LakeRefused` while somebody else does."""
        with open(self.root / "lock", "w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise LakeRefused(f"another process is writing to the tables in {self.root}") from error
            yield

    # --- tables ---------------------------------------------------------------------------------

    @property
    def bronze(self) -> Files:
        return self._files(self.root / "bronze" / "events", BRONZE)

    def gold(self, table: str, build: str | None = None) -> Files:
        """A table of the build that is in use, or of the one that is named."""
        described = CARRY if table == "carry" else GOLD[table]
        return self._files(self.root / "gold" / (build or self.build) / table, described)

    def _files(self, path: Path, table: Table) -> Files:
        return DeltaFiles(path, table.schema) if self.format == "delta" else ParquetFiles(path, table.schema)

    # --- builds of the facts ----------------------------------------------------------------------

    @property
    def build(self) -> str:
        pointer = self.root / "gold" / "CURRENT"
        return pointer.read_text().strip() if pointer.is_file() else "build-1"

    def next_build(self) -> str:
        """A name that no build has, in use or left behind by one that was killed."""
        return f"build-{int(self.build.rpartition('-')[2]) + 1}"

    def switch_to(self, build: str) -> None:
        """From here on readers find this build; the others are removed."""
        write_atomically(self.root / "gold" / "CURRENT", build)
        for folder in (self.root / "gold").iterdir():
            if folder.is_dir() and folder.name != build:
                self.remove_build(folder.name)

    def remove_build(self, build: str) -> None:
        shutil.rmtree(self.root / "gold" / build, ignore_errors=True)
        shutil.rmtree(self.root / "plans" / build, ignore_errors=True)

    # --- plans ------------------------------------------------------------------------------------

    def plan(self, job: str, number: int) -> dict[str, Any] | None:
        """What this batch was meant to read; None if nobody wrote it down."""
        path = self._plan_path(job, number)
        return json.loads(path.read_text()) if path.is_file() else None

    def write_plan(self, job: str, number: int, plan: Mapping[str, Any]) -> None:
        write_atomically(self._plan_path(job, number), plan)

    def _plan_path(self, job: str, number: int) -> Path:
        return self.root / "plans" / job / f"{number}.json"

    def ingested(self) -> tuple[int, Position]:
        """The number of the last batch that is in bronze, and how far the journal was read with it."""
        batch = self.bronze.batch
        if batch == 0:
            return 0, Position(self.incarnation, {})
        plan = self.plan("ingest", batch)
        if plan is None:
            raise LakeRefused(f"the plan of batch {batch} is gone from {self.root}: restore the whole folder")
        return batch, Position.decode(plan["end"])
