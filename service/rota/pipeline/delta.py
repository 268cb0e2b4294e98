"""Delta Lake tables through delta-rs: real ones, which DuckDB, polars and others read, without a jar."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from rota.pipeline.files import Written

if TYPE_CHECKING:
    from deltalake import DeltaTable

_WRITER = "rota-pipeline"


class DeltaFiles:
    """`Files` as a Delta table. The batch's number is in the commit of its files, as an application transaction."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self.schema = schema

    @property
    def batch(self) -> int:
        table = self._table()
        return 0 if table is None else table.transaction_version(_WRITER) or 0

    def commit(self, written: Sequence[Written], batch: int, *, replace: bool = False) -> bool:
        from deltalake import CommitProperties, Schema
        from deltalake.transaction import AddAction, Transaction, create_table_with_add_actions

        table = self._table()
        if table is not None and (table.transaction_version(_WRITER) or 0) >= batch:
            return False
        now_ms = int(time.time() * 1000)
        adds = [AddAction(each.path, each.size, {}, now_ms, True, each.stats) for each in written]
        commit = CommitProperties(app_transactions=[Transaction(_WRITER, batch, now_ms)])
        if table is None:
            self.path.mkdir(parents=True, exist_ok=True)
            schema = Schema.from_arrow(self.schema)
            create_table_with_add_actions(str(self.path), schema, adds, "error", commit_properties=commit)
        else:
            mode = "overwrite" if replace else "append"
            table.create_write_transaction([*adds], mode, table.schema(), commit_properties=commit)
        return True

    def uris(self) -> list[str]:
        table = self._table()
        return [] if table is None else sorted(table.file_uris())

    def compact(self) -> tuple[int, int]:
        before = len(self.uris())
        table = self._table()
        if table is not None and before > 1:
            table.optimize.compact()
        return before, len(self.uris())

    def drop(self, paths: Iterable[str]) -> None:
        from deltalake.transaction import AddAction, RemoveAction

        table = self._table()
        gone = [Path(path).name for path in paths]
        if table is not None and gone:
            now_ms = int(time.time() * 1000)
            removed: list[AddAction | RemoveAction] = [RemoveAction(name, True, now_ms) for name in gone]
            table.create_write_transaction(removed, "append", table.schema())

    def vacuum(self, hours: float) -> int:
        table = self._table()
        if table is None:
            return 0
        # `full` finds what killed tasks left behind, too; those files are in no log.
        return len(table.vacuum(round(hours), dry_run=False, enforce_retention_duration=False, full=True))

    def _table(self) -> DeltaTable | None:
        from deltalake import DeltaTable

        return DeltaTable(str(self.path)) if DeltaTable.is_deltatable(str(self.path)) else None
