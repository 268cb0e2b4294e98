"""Delta Lake tables through delta-rs: real ones, which DuckDB, polars and others read, without a jar."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rota.pipeline.failures import LakeBusy
from rota.pipeline.files import File, Written, to_merge
from rota.pipeline.leases import LEASE
from rota.pipeline.places import Place, is_remote, reached

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

_WRITER = "rota-pipeline"

_SETTINGS = {"delta.logRetentionDuration": "interval 2 days", "delta.checkpointInterval": "50"}
"""A table that is written to every few seconds has 17,000 commits a day, and each reader lists their files."""


class DeltaFiles:
    """`Files` as a Delta table. The batch's number is in the commit of its files, as an application transaction.

    In an object store, so is the number of the writer's lease: a writer that lost its lease to another process raises
    `LakeBusy` instead of committing.
    """

    def __init__(self, path: str, schema: pa.Schema, place: Place) -> None:
        self.path = path
        self.folder = path.rpartition("/")[0]
        self.schema = schema
        self._place = place
        self._known: DeltaTable | None = None

    @property
    def batch(self) -> int:
        table = self._table()
        return 0 if table is None else _batch(table)

    def commit(
        self, written: Sequence[Written], batch: int, *, replace: bool = False, replaced: Sequence[str] = ()
    ) -> bool:
        from deltalake import Schema

        table = self._table()
        if table is not None and _batch(table) >= batch:
            return False
        commit = self._commit(batch)
        adds = [_added(each) for each in written]
        with self._writing(table):
            if table is None:
                self._create(adds, commit)
            elif replace:
                # The form of the rows may be another than that of the rows that go.
                schema = Schema.from_arrow(self.schema)
                table.create_write_transaction(adds, "overwrite", schema, commit_properties=commit)
            else:
                actions = [*adds, *map(_removed, replaced)]
                table.create_write_transaction(actions, "append", table.schema(), commit_properties=commit)
        return True

    def rewrite(self, removed: Sequence[str], written: Sequence[Written]) -> None:
        table = self._table()
        if table is not None and (removed or written):
            actions = [*map(_added, written), *map(_removed, removed)]
            with self._writing(table):
                table.create_write_transaction(actions, "append", table.schema(), commit_properties=self._commit())

    def fence(self) -> None:
        """Keep writers with an earlier lease from committing; a table that is not there yet is made, without rows."""
        table = self._table()
        with self._writing(table):
            if table is None:
                self._create([], self._commit())
            else:
                table.create_write_transaction([], "append", table.schema(), commit_properties=self._commit())

    def _commit(self, batch: int = 0) -> CommitProperties:
        from deltalake import CommitProperties
        from deltalake.transaction import Transaction

        numbers = {_WRITER: batch, LEASE: self._place.lease}
        return CommitProperties(
            app_transactions=[Transaction(name, number, _now_ms()) for name, number in numbers.items() if number]
        )

    def _create(self, adds: list[Any], commit: CommitProperties) -> None:
        from deltalake import Schema
        from deltalake.transaction import create_table_with_add_actions

        if not is_remote(self.path):
            Path(self.path).mkdir(parents=True, exist_ok=True)
        schema = Schema.from_arrow(self.schema)
        create_table_with_add_actions(
            self.path, schema, adds, "error", configuration=_SETTINGS, commit_properties=commit
        )

    @contextmanager
    def _writing(self, table: DeltaTable | None) -> Iterator[None]:
        """Raise `LakeBusy` if another process has taken the lease since, be it while this commit is under way."""
        from deltalake.exceptions import CommitFailedError

        busy = f"another process has taken over the tables: {self.path} was not changed"
        if table is not None and (table.transaction_version(LEASE) or 0) > self._place.lease:
            raise LakeBusy(busy)
        try:
            with reached(self.path):
                yield
        except CommitFailedError as error:
            raise LakeBusy(busy) from error

    def files(self, upto: int | None = None) -> list[File]:
        table = self._as_of(upto)
        return [] if table is None else sorted(_files(table, self.path))

    def uris(self, upto: int | None = None) -> list[str]:
        return [each.uri for each in self.files(upto)]

    def compact(self) -> tuple[int, int]:
        files, table = self.files(), self._table()
        merged = to_merge(files)
        if table is None or not merged:
            return len(files), len(files)
        with self._writing(table):
            # It leaves files alone that are larger than what it makes: all but the merged ones.
            table.optimize.compact(target_size=sum(each.size for each in merged), commit_properties=self._commit())
        return len(files), len(self.uris())

    def vacuum(self, hours: float) -> int:
        table = self._table()
        if table is None:
            return 0
        # `full` finds what killed tasks left behind, too; those files are in no log.
        return len(table.vacuum(round(hours), dry_run=False, enforce_retention_duration=False, full=True))

    def _table(self) -> DeltaTable | None:
        """The table as it stands. One that is known reads only the commits since it was read."""
        from deltalake import DeltaTable

        with reached(self.path):
            if self._known is not None:
                self._known.update_incremental()
            elif DeltaTable.is_deltatable(self.path):
                self._known = DeltaTable(self.path)
        return self._known

    def _as_of(self, upto: int | None) -> DeltaTable | None:
        """Back from the newest version to the first that has no batch above `upto`: one step, or none, as a rule."""
        from deltalake import DeltaTable

        table = self._table()
        while table is not None and upto is not None and _batch(table) > upto:
            version = table.version() - 1
            table = DeltaTable(self.path, version=version) if version >= 0 else None
        return table


def _batch(table: DeltaTable) -> int:
    return table.transaction_version(_WRITER) or 0


def _now_ms() -> int:
    return int(time.time() * 1000)


def _added(written: Written) -> Any:
    from deltalake.transaction import AddAction

    return AddAction(written.path, written.size, {}, _now_ms(), True, written.stats)


def _removed(name: str) -> Any:
    from deltalake.transaction import RemoveAction

    return RemoveAction(name, True, _now_ms())


def _files(table: DeltaTable, folder: str) -> Iterator[File]:
    for row in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        least = {name[4:]: value for name, value in row.items() if name.startswith("min.") and value is not None}
        greatest = {name[4:]: value for name, value in row.items() if name.startswith("max.") and value is not None}
        uri = f"{folder}/{row['path']}"
        yield File(uri, row["path"], row["size_bytes"], row["num_records"] or 0, least, greatest)
