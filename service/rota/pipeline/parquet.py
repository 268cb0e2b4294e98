"""Tables of plain Parquet files, without a table format.

`manifests/000012.json` lists the files of the table's state 12, the statistics of each, and the batch that it is at;
`CURRENT` names the manifest in use and is replaced atomically. Readers go by the manifest: the folder also holds files
of killed tasks.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rota.pipeline.atomic import write_atomically
from rota.pipeline.files import File, Written, to_merge


class ParquetFiles:
    """`Files` as plain Parquet."""

    def __init__(self, path: str, schema: pa.Schema) -> None:
        self.path = path
        self.folder = path.rpartition("/")[0]
        self.schema = schema
        self._path = Path(path)

    @property
    def batch(self) -> int:
        return int(self._state()["batch"])

    def commit(
        self, written: Sequence[Written], batch: int, *, replace: bool = False, replaced: Sequence[str] = ()
    ) -> bool:
        state = self._state()
        if state["batch"] >= batch:
            return False
        kept = [] if replace else _without(state["files"], replaced)
        self._switch(state, [*kept, *map(_entry, written)], batch)
        return True

    def rewrite(self, removed: Sequence[str], written: Sequence[Written]) -> None:
        state = self._state()
        if removed or written:
            self._switch(state, [*_without(state["files"], removed), *map(_entry, written)], state["batch"])

    def fence(self) -> None:
        """The lock of a folder ends with its process."""

    def files(self, upto: int | None = None) -> list[File]:
        state = self._state()
        while upto is not None and state["batch"] > upto:
            state = self._numbered(state["number"] - 1)
        return sorted(self._file(entry) for entry in state["files"])

    def uris(self, upto: int | None = None) -> list[str]:
        return [each.uri for each in self.files(upto)]

    def compact(self) -> tuple[int, int]:
        files = self.files()
        small = to_merge(files)
        if small:
            merged = self._path / f"part-compacted-{uuid.uuid4().hex}.parquet"
            with pq.ParquetWriter(merged, self.schema, compression="zstd") as writer:
                for each in small:
                    for batch in pq.ParquetFile(each.uri).iter_batches():
                        writer.write_batch(batch)
            stats = json.dumps({"numRecords": sum(each.rows for each in small), "minValues": {}, "maxValues": {}})
            written = Written(self._path.name, merged.name, merged.stat().st_size, stats)
            self.rewrite([each.name for each in small], [written])
        return len(files), len(self.uris())

    def vacuum(self, hours: float) -> int:
        before = time.time() - hours * 3600
        number = self._state()["number"]
        # A state ended when the next one was written: its files are in use until then, however old they are.
        kept = [n for n in self._numbers() if n >= number or self._manifest(n + 1).stat().st_mtime >= before]
        used = {entry["path"] for n in kept for entry in self._numbered(n)["files"]}
        unused = [p for p in self._path.glob("*.parquet") if p.name not in used and p.stat().st_mtime < before]
        for path in unused:
            path.unlink()
        for old in set(self._numbers()) - set(kept):
            self._manifest(old).unlink()
        return len(unused)

    def _state(self) -> dict[str, Any]:
        pointer = self._path / "CURRENT"
        return self._numbered(int(pointer.read_text().strip().removesuffix(".json")) if pointer.is_file() else 0)

    def _numbered(self, number: int) -> dict[str, Any]:
        if not number:
            return {"number": 0, "batch": 0, "files": []}
        state: dict[str, Any] = json.loads(self._manifest(number).read_text())
        return state

    def _numbers(self) -> list[int]:
        return sorted(int(each.stem) for each in (self._path / "manifests").glob("[0-9]*.json"))

    def _manifest(self, number: int) -> Path:
        return self._path / "manifests" / f"{number:06}.json"

    def _file(self, entry: dict[str, Any]) -> File:
        path = self._path / entry["path"]
        stats = entry["stats"]
        least, greatest = self._values(stats["minValues"]), self._values(stats["maxValues"])
        return File(str(path), path.name, entry["size"], stats["numRecords"], least, greatest)

    def _values(self, values: dict[str, Any]) -> dict[str, Any]:
        times = {field.name for field in self.schema if pa.types.is_timestamp(field.type)}
        return {name: datetime.fromisoformat(value) if name in times else value for name, value in values.items()}

    def _switch(self, state: dict[str, Any], files: list[dict[str, Any]], batch: int) -> None:
        number = state["number"] + 1
        write_atomically(self._manifest(number), {"number": number, "batch": batch, "files": files})
        write_atomically(self._path / "CURRENT", self._manifest(number).name)


def _entry(written: Written) -> dict[str, Any]:
    return {"path": written.path, "size": written.size, "stats": json.loads(written.stats)}


def _without(files: list[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    gone = set(names)
    return [each for each in files if each["path"] not in gone]
