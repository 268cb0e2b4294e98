"""The tables that Spark writes: those of one pass over the journal, however it is cut and whatever is killed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from rota.core.group.records import RECORD_KINDS, decode_entry, payload_of
from rota.core.group.shard import ShardState
from rota.core.group.state import Group
from rota.pipeline.batches import Batches, progress_of, start
from rota.pipeline.failures import LakeBusy, LakeRefused, LinesMissing, WrongIncarnation, failure_of
from rota.pipeline.lake import Lake, Snapshot
from rota.pipeline.silver import column_of, columns_of
from rota.pipeline.tables import Line
from tests.pipeline.journals import DECODER, SIMULATED, simulated, sqlite_store
from tests.pipeline.lakes import Fed
from tests.pipeline.replaying import closed_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOURNAL = simulated(1)
LAST = max(line.seq for line in JOURNAL)


@pytest.fixture(scope="session")
def fed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Fed:
    """Tables of a whole journal, read by two runs. Tests that change them make a copy."""
    fed = Fed(spark, tmp_path_factory.mktemp("fed"), JOURNAL)
    fed.append(LAST // 2)
    fed.read(linesPerTask="50")
    fed.append(LAST)
    fed.read()
    return fed


def copied(fed: Fed, folder: Path) -> Lake:
    shutil.copytree(fed.lake.root, folder / "lake")
    return Lake(fed.lake.spark, str(folder / "lake"))


def test_batches_end_with_the_rows_of_one_pass_over_the_journal(fed: Fed) -> None:
    tables = Snapshot(fed.lake)

    lines = sorted((row.shard_id, row.seq) for row in tables.lines().select("shard_id", "seq").collect())

    assert tables.batch == 1
    assert lines == sorted((line.shard_id, line.seq) for line in JOURNAL)
    assert fed.rows() == closed_rows(JOURNAL, SIMULATED)


def test_current_says_how_each_group_stands(fed: Fed) -> None:
    expected = replayed(JOURNAL)

    rows = [row.asDict(recursive=True) for row in Snapshot(fed.lake).current.where("group_id <> ''").collect()]

    alive = {row["group_id"]: row for row in rows if row["state"] != "Dead"}
    assert {group_id: (row["state"], row["member_count"], row["leader_id"]) for group_id, row in alive.items()} == {
        group_id: (group.state.value, len(group.members), group.generation_leader_id or "")
        for group_id, group in expected.items()
    }
    assert {
        (group_id, member["member_id"]) for group_id, row in alive.items() for member in row["open"]["members"]
    } == {(group_id, member_id) for group_id, group in expected.items() for member_id in group.members}
    assert {
        (row["group_id"], each["topic"], each["partition"]): each["last_offset"]
        for row in rows
        for each in row["open"]["offsets"]
    } == {
        (group_id, *partition): committed.offset
        for group_id, group in expected.items()
        for partition, committed in group.offsets.items()
    }


def test_each_line_has_the_typed_columns_of_its_kind(fed: Fed) -> None:
    rows = {(row.shard_id, row.seq): row.asDict(recursive=True) for row in Snapshot(fed.lake).events().collect()}

    for line in JOURNAL:
        row, payload = rows[line.shard_id, line.seq], json.loads(line.payload)
        assert {name for name in row if row[name] is not None} <= {*_OF_EACH_LINE, *columns_of(line.kind)}
        for field, value in payload.items():
            found = row[column_of(line.kind, field)]
            if isinstance(value, str | int | bool) or value is None:
                assert found == value, (line.kind, field)
            elif isinstance(value, list):
                assert len(found) == len(value), (line.kind, field)
                assert all(plain(each) == plain(other) for each, other in zip(found, value, strict=True))


_OF_EACH_LINE = (
    *("shard_id", "seq", "at", "epoch", "namespace", "group_id", "generation_id", "kind", "reason", "batch"),
)


def plain(value: Any) -> list[Any]:
    """The values of an item of a list, without those that the journal leaves out."""
    values = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else [value]
    return [each for each in values if each is not None]


def test_each_kind_of_line_has_the_columns_of_its_record() -> None:
    """A new kind, or a new field of one, is a column at once."""
    for kind, record in RECORD_KINDS.items():
        fields = [name for name in record.__struct_fields__ if name != "reason"]
        assert columns_of(kind) == [column_of(kind, name) for name in fields], kind
    assert callable(payload_of)


@pytest.mark.thorough
@pytest.mark.parametrize("current_is_lost", [False, True])
def test_a_batch_that_is_run_again_changes_nothing(fed: Fed, tmp_path: Path, current_is_lost: bool) -> None:
    """As after a kill: the last batch is not in Spark's log, and perhaps `current` was not written yet."""
    lake = copied(fed, tmp_path)
    before = {name: Snapshot(fed.lake).closed(name).count() for name in ("rebalances", "members", "offsets")}
    forget(Path(lake.root, "checkpoint", "commits", str(Snapshot(fed.lake).batch)))
    if current_is_lost:
        newest = max(Path(lake.root, "gold", "current", "_delta_log").glob("*.json"))
        forget(newest)
        forget(newest.with_suffix(".crc"))

    list(progress_of(start(Batches(lake, DECODER), {"url": fed.url})))

    again = Snapshot(lake)
    assert {name: again.closed(name).count() for name in before} == before
    assert again.lines().count() == len(JOURNAL)
    assert sorted(again.current.select("group_id", "carry").collect()) == sorted(
        Snapshot(fed.lake).current.select("group_id", "carry").collect()
    )


def forget(path: Path) -> None:
    """Remove a file, and the checksum that Spark keeps beside it."""
    path.unlink()
    path.with_name(f".{path.name}.crc").unlink()


@pytest.mark.slow
def test_following_reads_lines_as_they_come(spark: SparkSession, tmp_path: Path) -> None:
    fed = Fed(spark, tmp_path, JOURNAL)
    fed.append(LAST // 2)
    query = start(Batches(fed.lake, DECODER), {"url": fed.url}, every_s=1)

    lines = 0
    for done in progress_of(query, idle=True):
        lines += done.lines
        fed.append(LAST)
        if lines == len(JOURNAL):
            break
    query.stop()

    assert fed.rows() == closed_rows(JOURNAL, SIMULATED)


# --- what stops a batch -----------------------------------------------------------------------------------


def failure(fed: Fed, lake: Lake, url: str) -> object:
    """What a user is told when these tables are fed from this store."""
    with pytest.raises((StreamingQueryException, LakeRefused)) as stopped:
        list(progress_of(start(Batches(lake, fed.decoder), {"url": url})))
    return failure_of(stopped.value, lake.root)


@pytest.mark.slow
def test_failures_are_sentences_with_the_next_step(fed: Fed, tmp_path: Path) -> None:
    lake = copied(fed, tmp_path)
    other = sqlite_store(tmp_path / "other.db", simulated(2), incarnation="2" * 32)
    another = failure(fed, lake, other)
    holed = [line for line in JOURNAL if (line.shard_id, line.seq) != (1, 30)]
    new = Lake(fed.lake.spark, str(tmp_path / "new"))
    missing = failure(fed, new, sqlite_store(tmp_path / "holed.db", holed))
    shutil.rmtree(tmp_path / "lake" / "checkpoint")
    lost = failure(fed, lake, fed.url)

    assert isinstance(another, WrongIncarnation)
    assert "use another folder of tables" in str(another)
    assert isinstance(missing, LinesMissing)
    assert "shard 1: 1 of the lines 30 to 30 are not there" in str(missing)
    assert isinstance(lost, LakeRefused)
    assert "restore the whole folder" in str(lost)
    with pytest.raises(LakeRefused, match="run `rota pipeline run` first"):
        Snapshot(new)


@pytest.mark.slow
def test_a_damaged_table_is_named_with_a_way_out(fed: Fed, tmp_path: Path) -> None:
    lake = copied(fed, tmp_path)
    log = max(Path(lake.root, "gold", "current", "_delta_log").glob("*.json"))
    log.write_bytes(log.read_bytes()[:20])

    with pytest.raises(Exception) as stopped:
        Snapshot(lake).current.collect()

    found = failure_of(stopped.value, lake.root)
    assert isinstance(found, LakeRefused)
    assert not isinstance(found, LakeBusy)
    assert "restore the whole folder" in str(found)


# --- the core's own word on a journal ---------------------------------------------------------------------


def replayed(lines: tuple[Line, ...]) -> dict[str, Group]:
    """Each group after its lines."""
    shards: dict[str, ShardState] = {}
    epochs: dict[str, int] = {}
    for line in lines:
        if line.group_id:
            shard = shards.setdefault(line.group_id, ShardState(line.shard_id))
            if epochs.setdefault(line.group_id, line.epoch) != line.epoch:
                shard.forget_unsettled()
            epochs[line.group_id] = line.epoch
            written = {name: getattr(line, name) for name in _ENTRY}
            shard.replay(decode_entry({**written, "payload": json.loads(line.payload)}))
    return {group_id: group for group_id, shard in shards.items() for group in shard.groups.values()}


_ENTRY = ("at_ms", "namespace", "group_id", "generation_id", "kind", "reason")
