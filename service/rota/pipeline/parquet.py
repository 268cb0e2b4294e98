"""Tables of plain Parquet files, for those who want no more than that.

`manifests/000012.json` lists the files of the table's state 12 and the batch that it is at; `CURRENT` names the
manifest in use and is replaced atomically. Readers go by the manifest: the folder also holds files of killed tasks.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rota.pipeline.atomic import write_atomically
from rota.pipeline.files import Written

_SMALL_BYTES = 64 * 1024 * 1024


class ParquetFiles:
    """`Files` as plain Parquet."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self.schema = schema

    @property
    def batch(self) -> int:
        return int(self._state()["batch"])

    def commit(self, written: Sequence[Written], batch: int, *, replace: bool = False) -> bool:
        state = self._state()
        if state["batch"] >= batch:
            return False
        kept = [] if replace else state["files"]
        self._switch(state, [*kept, *(each.path for each in written)], batch)
        return True

    def uris(self) -> list[str]:
        return sorted(str(self.path / name) for name in self._state()["files"])

    def compact(self) -> tuple[int, int]:
        state = self._state()
        small = [name for name in state["files"] if (self.path / name).stat().st_size < _SMALL_BYTES]
        if len(small) > 1:
            merged = f"part-compacted-{uuid.uuid4().hex}.parquet"
            with pq.ParquetWriter(self.path / merged, self.schema, compression="zstd") as writer:
                for name in small:
                    for batch in pq.ParquetFile(self.path / name).iter_batches():
                        writer.write_batch(batch)
            self._switch(state, [*(name for name in state["files"] if name not in small), merged], state["batch"])
        return len(state["files"]), len(self.uris())

    def drop(self, paths: Iterable[str]) -> None:
        state = self._state()
        gone = {Path(path).name for path in paths}
        self._switch(state, [name for name in state["files"] if name not in gone], state["batch"])

    def vacuum(self, hours: float) -> int:
        state = self._state()
        before = time.time() - hours * 3600
        unused = [
            path
            for path in self.path.glob("*.parquet")
            if path.name not in state["files"] and path.stat().st_mtime < before
        ]
        for path in unused:
            path.unlink()
        for manifest in (self.path / "manifests").glob("*.json"):
            if int(manifest.stem) < state["number"]:
                manifest.unlink()
        return len(unused)

    def _state(self) -> dict[str, Any]:
        pointer = self.path / "CURRENT"
        if not pointer.is_file():
            return {"number": 0, "batch": 0, "files": []}
        state: dict[str, Any] = json.loads((self.path / "manifests" / pointer.read_text().strip()).read_text())
        return state

    def _switch(self, state: dict[str, Any], files: list[str], batch: int) -> None:
        number = state["number"] + 1
        name = f"{number:06}.json"
        write_atomically(self.path / "manifests" / name, {"number": number, "batch": batch, "files": files})
        write_atomically(self.path / "CURRENT", name)
