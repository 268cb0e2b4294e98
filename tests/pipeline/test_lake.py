"""Tables that are kept up to date for long: without Spark, as refreshes of few lines are."""

from __future__ import annotations

import json
import random
import sqlite3
from collections import Counter
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rota.group.journal import decode_entry
from rota.group.shard_state import ShardState
from rota.group.state import Group
from rota.pipeline import gold
from rota.pipeline.bronze import Ingest
from rota.pipeline.delta import DeltaFiles
from rota.pipeline.events import Line
from rota.pipeline.failures import LakeRefused, WrongIncarnation
from rota.pipeline.files import Files, TableWriter
from rota.pipeline.gold import backfill, refresh
from rota.pipeline.journal import open_journal
from rota.pipeline.lake import LAKE_VERSION, Lake
from rota.pipeline.parquet import ParquetFiles
from rota.pipeline.places import place_at
from rota.pipeline.tables import FOLDED
from rota.pipeline.upkeep import compact_bronze, compact_lake
from tests.pipeline.journals import DECODER, INCARNATION, append_to_sqlite, simulated, sqlite_store
from tests.pipeline.test_spark import closed_rows, rows_in, stored_rows

each_format = pytest.mark.parametrize("format_", ["delta", "parquet"])
JOURNAL = simulated(1)
HOUR_MS = 3_600_000


class Fed:
    """Tables, and the store that they are fed from: with more lines each time."""

    def __init__(self, folder: Path, format_: str = "delta", journal: tuple[Line, ...] = JOURNAL) -> None:
        self._journal = journal
        self._there: set[Line] = set()
        self.url = sqlite_store(folder / "rota.db", [])
        self.ingest = Ingest(open_journal(self.url), {"url": self.url, "linesPerTask": "20"})
        self.lake = Lake.create(folder / "lake", format_, INCARNATION)

    def append(self, to_seq: int) -> None:
        """Put the lines up to this number into the store."""
        new = [line for line in self._journal if line.seq <= to_seq and line not in self._there]
        append_to_sqlite(self.url, new)
        self._there.update(new)

    def grow(self, to_seq: int) -> None:
        """Put them there, and ingest them."""
        self.append(to_seq)
        self.ingest.run(None, self.lake)

    def refresh(self) -> None:
        refresh(None, self.lake, decoder=DECODER)

    def rows(self) -> dict[str, Counter[str]]:
        return {table: stored_rows(self.lake, table) for table in FOLDED}


@each_format
def test_many_small_refreshes_end_with_the_rows_of_one_pass(tmp_path: Path, format_: str) -> None:
    fed = Fed(tmp_path, format_)

    for to_seq in (1, 7, 8, 40, 41, 90, 1_000):
        fed.grow(to_seq)
        fed.refresh()
        if to_seq == 41:
            list(compact_lake(fed.lake, vacuum_hours=0))

    assert fed.rows() == closed_rows(JOURNAL)
    assert len(fed.lake.gold("carry").files()) == 2


def test_a_refresh_replaces_the_states_of_shards_with_lines(tmp_path: Path) -> None:
    fed = Fed(tmp_path, journal=tuple(line for line in JOURNAL if line.shard_id == 1 or line.seq <= 5))
    fed.grow(5)
    fed.refresh()
    before = set(fed.lake.gold("carry").uris())

    fed.grow(6)
    fed.refresh()

    assert len(before) == 2
    assert len(before & set(fed.lake.gold("carry").uris())) == 1


@each_format
@pytest.mark.parametrize("anew", [False, True])
def test_readers_have_the_fold_before_until_all_is_there(
    tmp_path: Path, format_: str, anew: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = Fed(tmp_path, format_)
    fed.grow(60)
    fed.refresh()
    before = fed.rows()
    fed.grow(1_000)

    def stop(place: str) -> None:
        if place == "gold: before the carry":
            raise KeyboardInterrupt

    fold = backfill if anew else refresh
    with monkeypatch.context() as patched:
        patched.setattr(gold, "breakpoint_at", stop)
        with pytest.raises(KeyboardInterrupt):
            fold(None, fed.lake, decoder=DECODER)
    torn = fed.rows()
    moment = Lake.open(fed.lake.root).moment()
    read = {table: rows_in(moment.fact_files(table), table) for table in FOLDED}
    fed.refresh()

    assert read == before
    assert torn != before
    assert fed.rows() == closed_rows(JOURNAL)


def test_a_fold_without_facts_is_finished_as_it_was_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after `current_offsets`, which no table of facts shows; the next refresh has more lines."""
    fed = Fed(tmp_path)
    commits = [line.seq for line in JOURNAL if line.kind == "offsets_committed" and line.seq > 40]
    first = next(seq for seq in commits if closed_rows(up_to(seq)) == closed_rows(up_to(seq - 1)))
    fed.grow(first - 1)
    fed.refresh()
    fold = fed.lake.gold("carry").batch + 1
    fed.grow(first)
    with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
        patched.setattr(gold, "breakpoint_at", stop_before_the_carry)
        fed.refresh()
    begun = [table for table in FOLDED if fed.lake.gold(table).batch == fold]
    current_has_it = fed.lake.gold("current_offsets").batch == fold
    fed.grow(1_000)

    fed.refresh()

    open_now = current(fed.lake, "current_offsets")
    offsets = {(x["group_id"], x["topic"], x["partition"]): x["last_offset"] for x in open_now}
    assert (begun, current_has_it) == ([], True)
    assert offsets == {
        (group_id, *partition): committed.offset
        for group_id, group in replayed(list(JOURNAL)).items()
        for partition, committed in group.offsets.items()
    }


def up_to(seq: int) -> list[Line]:
    return [line for line in JOURNAL if line.seq <= seq]


def stop_before_the_carry(place: str) -> None:
    if place == "gold: before the carry":
        raise KeyboardInterrupt


def test_a_backfill_keeps_facts_whose_lines_were_dropped(tmp_path: Path) -> None:
    fed = Fed(tmp_path)
    fed.grow(1_000)
    fed.refresh()
    before = fed.rows()
    now = datetime.fromtimestamp(max(line.at_ms for line in JOURNAL) / 1000, UTC)

    said = list(compact_lake(fed.lake, keep_days=0.02, vacuum_hours=0, now=now))
    with pytest.raises(LakeRefused, match="would lose these facts for good") as refused:
        backfill(None, fed.lake, decoder=DECODER)
    kept = fed.rows()
    backfill(None, fed.lake, decoder=DECODER, forget_dropped=True)

    assert "lines from before" in said[0]
    assert "--forget-dropped" in str(refused.value)
    assert kept == before
    assert sum(fed.rows()["rebalances"].values()) < sum(before["rebalances"].values())


def of_form(lake: Lake, version: int) -> Lake:
    """The same tables, as if another release had made them."""
    described = Path(lake.root) / "lake.json"
    described.write_text(json.dumps({**json.loads(described.read_text()), "version": version}))
    return Lake.open(lake.root, older=True)


def test_an_upgrade_folds_anew_where_all_lines_are_there(tmp_path: Path) -> None:
    fed = Fed(tmp_path)
    fed.grow(1_000)
    fed.refresh()

    done = backfill(None, of_form(fed.lake, LAKE_VERSION - 1), decoder=DECODER)

    assert done.rows["rebalances"] == fed.rows()["rebalances"].total()


@each_format
def test_old_lines_go_even_where_young_ones_are_in_their_file(tmp_path: Path, format_: str) -> None:
    """Merging the files of each day keeps days apart, so that the lines of a day go when it is their time."""
    fed = Fed(tmp_path, format_)
    fed.grow(30)
    fed.refresh()
    fed.grow(1_000)
    folded_to = 2 if fed.lake.ingested()[0] > 2 else 1
    before = datetime.fromtimestamp(sorted(line.at_ms for line in JOURNAL)[len(JOURNAL) // 2] / 1000, UTC)
    lines = bronze_lines(fed.lake)
    compact_bronze(fed.lake, None)

    compact_bronze(fed.lake, before)

    folded = fed.lake.folded_to(fed.lake.gold("carry").batch)
    left = [line for line in lines if line[2] >= before or line[3] > folded]
    assert folded <= folded_to
    assert 0 < len(left) < len(lines)
    assert bronze_lines(fed.lake) == left


def test_a_day_has_one_file_after_compaction(tmp_path: Path) -> None:
    days = [line._replace(at_ms=line.at_ms + line.seq % 3 * 24 * HOUR_MS) for line in JOURNAL]
    fed = Fed(tmp_path, journal=tuple(days))
    for to_seq in (10, 20, 1_000):
        fed.grow(to_seq)
    lines = bronze_lines(fed.lake)

    compact_bronze(fed.lake, None)

    files = fed.lake.bronze.files()
    assert bronze_lines(fed.lake) == lines
    assert len(files) <= 4
    assert all(each.greatest["at"] - each.least["at"] < timedelta(days=1) for each in files)


def test_a_restored_store_that_has_gone_on_is_refused(tmp_path: Path) -> None:
    """It has more lines than were read, and of the shard that was read to the end some are others."""
    fed = Fed(tmp_path)
    fed.grow(40)
    before = bronze_lines(fed.lake)
    others = [line._replace(at_ms=line.at_ms + 1) for line in JOURNAL if 30 < line.seq <= 60]

    with closing(sqlite3.connect(tmp_path / "rota.db")) as connection, connection:
        connection.execute("DELETE FROM group_events WHERE seq > 30")
    append_to_sqlite(fed.url, others)
    with pytest.raises(WrongIncarnation, match="line 40 is not the line that was read before") as refused:
        fed.ingest.run(None, fed.lake)

    assert "keep this one" in str(refused.value)
    assert bronze_lines(fed.lake) == before


def test_a_last_line_that_was_pruned_is_not_asked_for(tmp_path: Path) -> None:
    fed = Fed(tmp_path)
    fed.grow(40)
    with closing(sqlite3.connect(tmp_path / "rota.db")) as connection, connection:
        connection.execute("DELETE FROM group_events WHERE shard_id = 1 AND seq <= 40")
        connection.execute("UPDATE shards SET first_seq = 41 WHERE shard_id = 1")

    fed.grow(1_000)

    assert len(bronze_lines(fed.lake)) == len(JOURNAL)


def test_current_tables_say_how_each_group_stands(tmp_path: Path) -> None:
    """After each refresh: what the service's own core says after the lines so far."""
    fed = Fed(tmp_path)

    for to_seq in (3, 30, 31, 90, 1_000):
        fed.grow(to_seq)
        fed.refresh()

        groups, members = current(fed.lake, "current_groups"), current(fed.lake, "current_members")
        offsets = current(fed.lake, "current_offsets")
        expected = replayed([line for line in JOURNAL if line.seq <= to_seq])
        assert {x["group_id"]: (x["state"], x["members"]) for x in groups if x["state"] != "Dead"} == {
            group_id: (group.state.value, len(group.members)) for group_id, group in expected.items()
        }
        assert sorted((x["group_id"], x["member_id"]) for x in members) == sorted(
            (group_id, member_id) for group_id, group in expected.items() for member_id in group.members
        )
        assert {(x["group_id"], x["topic"], x["partition"]): x["last_offset"] for x in offsets} == {
            (group_id, *partition): committed.offset
            for group_id, group in expected.items()
            for partition, committed in group.offsets.items()
        }
        leaders = {x["group_id"]: x["leader_id"] for x in groups if x["leader_id"]}
        assert leaders == {x["group_id"]: x["member_id"] for x in members if x["is_leader"]}


def replayed(lines: list[Line]) -> dict[str, Group]:
    """Each group after its lines."""
    shards: dict[str, ShardState] = {}
    epochs: dict[str, int] = {}
    for line in lines:
        if line.group_id:
            shard = shards.setdefault(line.group_id, ShardState(line.shard_id))
            if epochs.setdefault(line.group_id, line.epoch) != line.epoch:
                shard.forget_unsettled()
            epochs[line.group_id] = line.epoch
            written = {name: getattr(line, name) for name in ENTRY}
            shard.replay(decode_entry({**written, "payload": json.loads(line.payload)}))
    return {group_id: group for group_id, shard in shards.items() for group in shard.groups.values()}


ENTRY = ("at_ms", "namespace", "group_id", "generation_id", "kind", "reason")


def current(lake: Lake, table: str) -> list[dict[str, Any]]:
    return [row for uri in lake.fact_files(table) for row in pq.read_table(uri).to_pylist()]


def bronze_lines(lake: Lake) -> list[tuple[int, int, datetime, int]]:
    names = ["shard_id", "seq", "at", "ingest_batch"]
    tables = [pq.read_table(uri, columns=names).to_pydict() for uri in lake.bronze.uris()]
    return sorted(row for each in tables for row in zip(*(each[name] for name in names), strict=True))


@each_format
def test_a_row_is_merged_anew_only_when_its_file_doubles(tmp_path: Path, format_: str) -> None:
    schema, place, draw = pa.schema([("n", pa.int64())]), place_at(tmp_path), random.Random(7)
    folder = f"{tmp_path}/numbers"
    table: Files = DeltaFiles(folder, schema, place) if format_ == "delta" else ParquetFiles(folder, schema)
    wanted: list[int] = []
    rewritten = most = 0
    for batch in range(1, 33):
        numbers = [draw.getrandbits(60) for _ in range(1_000)]
        writer = TableWriter(table.folder, {"numbers": schema}, f"{batch:06}")
        writer.write("numbers", pa.RecordBatch.from_pydict({"n": numbers}, schema=schema))
        table.commit(writer.close(), batch)
        before = {each.name for each in table.files()}
        table.compact()
        rewritten += sum(each.rows for each in table.files() if each.name not in before)
        most, wanted = max(most, len(table.files())), wanted + numbers

    # Merges of everything would write 2 + 3 + ... + 32 = 527 thousand rows. Here each of 32 thousand is merged into
    # files of 2, 4, 8, 16 and 32 thousand at most: 5 * 32 = 160.
    assert 32_000 <= rewritten <= 160_000
    assert most <= 6
    assert sorted(wanted) == sorted(n for uri in table.uris() for n in pq.read_table(uri)["n"].to_pylist())
