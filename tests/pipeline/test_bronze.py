"""What the tasks of an ingest write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rota.pipeline.bronze import COMMITS, lines_writer
from rota.pipeline.events import EVENTS, Line
from tests.pipeline.journals import simulated


def test_committed_offsets_stand_apart_from_all_else_in_a_file_that_has_every_line_once(tmp_path: Path) -> None:
    lines = simulated(1)

    list(lines_writer(str(tmp_path), 7)(batches(lines, rows=100)))

    (path,) = (tmp_path / "events").iterdir()
    file = pq.ParquetFile(path)
    kinds = [set(file.read_row_group(n, ["kind"])["kind"].to_pylist()) for n in range(file.num_row_groups)]
    assert {COMMITS} in kinds
    assert all(found == {COMMITS} or COMMITS not in found for found in kinds)
    numbers = zip(*(file.read()[name].to_pylist() for name in ("shard_id", "seq")), strict=True)
    assert sorted(numbers) == sorted((line.shard_id, line.seq) for line in lines)
    assert set(file.read()["ingest_batch"].to_pylist()) == {7}


def batches(lines: tuple[Line, ...], rows: int) -> Iterator[pa.RecordBatch]:
    arrays = [
        pa.array([at_ms * 1000 for at_ms in column] if field.name == "at" else column, field.type)
        for column, field in zip(zip(*lines, strict=True), EVENTS, strict=True)
    ]
    yield from pa.Table.from_arrays(arrays, schema=EVENTS).to_batches(max_chunksize=rows)
