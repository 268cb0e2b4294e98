"""What the tasks of an ingest write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rota.pipeline.bronze import Ingest, write_lines
from rota.pipeline.committed import COMMITS
from rota.pipeline.events import EVENTS, Line
from rota.pipeline.journal import open_journal
from rota.pipeline.lake import Lake
from rota.pipeline.slices import BUCKETS, bucket_of, range_count
from tests.pipeline.journals import INCARNATION, simulated, sqlite_store


def test_committed_offsets_have_columns_apart_from_the_rest(tmp_path: Path) -> None:
    lines = simulated(1)

    write_lines(batches(lines, rows=100), str(tmp_path), 7)

    (path,) = (tmp_path / "events").iterdir()
    file = pq.ParquetFile(path)
    kinds = [set(file.read_row_group(n, ["kind"])["kind"].to_pylist()) for n in range(file.num_row_groups)]
    assert {COMMITS} in kinds
    assert all(found == {COMMITS} or COMMITS not in found for found in kinds)
    numbers = zip(*(file.read()[name].to_pylist() for name in ("shard_id", "seq")), strict=True)
    assert sorted(numbers) == sorted((line.shard_id, line.seq) for line in lines)
    assert set(file.read()["ingest_batch"].to_pylist()) == {7}
    written = file.read(["shard_id", "seq", "offsets"]).to_pylist()
    assert {(x["shard_id"], x["seq"]): x["offsets"] for x in written if x["offsets"] is not None} == {
        (line.shard_id, line.seq): [
            {"topic": topic, "partition": partition, "offset": offset}
            for topic, partition, offset, *_ in json.loads(line.payload)["offsets"]
        ]
        for line in lines
        if line.kind == COMMITS
    }


@pytest.mark.parametrize(("tasks", "ranges"), [(1, 8), (4, 8), (12, 16), (32, 32), (100, BUCKETS)])
def test_row_groups_are_as_narrow_as_the_parts_of_many_tasks(tmp_path: Path, tasks: int, ranges: int) -> None:
    lines = [
        line._replace(shard_id=shard_id, kind="member_left") for shard_id in range(96) for line in simulated(1)[:1]
    ]

    assert range_count(tasks) == ranges
    write_lines(batches(tuple(lines), rows=len(lines)), str(tmp_path), 7, ranges)

    (path,) = (tmp_path / "events").iterdir()
    file = pq.ParquetFile(path)
    groups = [file.read_row_group(n, ["shard_id"])["shard_id"].to_pylist() for n in range(file.num_row_groups)]
    found = [{bucket_of(shard_id) for shard_id in each} for each in groups]
    assert sorted(map(sorted, found)) == [
        list(range(first, first + BUCKETS // ranges)) for first in range(0, BUCKETS, BUCKETS // ranges)
    ]


def test_tasks_read_the_store_once_without_spark(tmp_path: Path) -> None:
    lines = simulated(1)
    url = sqlite_store(tmp_path / "rota.db", lines)
    lake = Lake.create(tmp_path / "lake", "delta", INCARNATION)

    done = Ingest(open_journal(url), {"url": url, "linesPerTask": "20"}, most_lines=60).run(None, lake)

    read = [pq.read_table(uri, columns=["shard_id", "seq"]).to_pydict() for uri in lake.bronze.uris()]
    numbers = [number for each in read for number in zip(each["shard_id"], each["seq"], strict=True)]
    assert done.batch > 1
    assert done.lines == len(lines)
    assert len(lake.bronze.uris()) >= len(lines) // 20
    assert sorted(numbers) == sorted((line.shard_id, line.seq) for line in lines)


def batches(lines: tuple[Line, ...], rows: int) -> Iterator[pa.RecordBatch]:
    arrays = [
        pa.array([at_ms * 1000 for at_ms in column] if field.name == "at" else column, field.type)
        for column, field in zip(zip(*lines, strict=True), EVENTS, strict=True)
    ]
    yield from pa.Table.from_arrays(arrays, schema=EVENTS).to_batches(max_chunksize=rows)
