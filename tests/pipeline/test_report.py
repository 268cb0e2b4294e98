"""Uses of the facts: the report, the advice and the audit, which finds nothing unless something is wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rota.pipeline.advisor import ACTUAL, STRATEGIES, advise, changes
from rota.pipeline.audit import audit
from rota.pipeline.bronze import Ingest
from rota.pipeline.frames import opened
from rota.pipeline.gold import refresh
from rota.pipeline.journal import open_journal
from rota.pipeline.lake import Lake
from rota.pipeline.report import make_report
from rota.pipeline.timeouts import advise_timeouts
from rota.pipeline.upkeep import compact_lake
from rota.protocol.causes import CAUSES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


@pytest.fixture
def lake(spark: SparkSession, postgres_url: str, lake_folder: Path) -> Lake:
    """Tables of a small fleet's journal, in plain files, so that a test can reach into them."""
    journal = open_journal(postgres_url)
    lake = Lake.create(lake_folder, "parquet", journal.heads().incarnation)
    ingest = Ingest(journal, {"url": postgres_url}, most_lines=1_000)
    ingest.run(spark, lake)
    refresh(spark, lake)
    return lake


@pytest.fixture
def _far_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine with a clock that does not show UTC."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Pacific/Auckland")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("_far_east")
def test_the_report_shows_every_cause_and_is_one_file(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    rows = advise(spark, lake)
    prices = changes(spark, lake)

    paths = make_report(spark, lake, days=1).write(tmp_path / "out")

    html = (tmp_path / "out" / "index.html").read_text()
    causes = (tmp_path / "out" / "causes.csv").read_text().splitlines()[1:]
    reported = {line.split(",")[0]: int(line.split(",")[1]) for line in causes}
    assert rows > 0
    assert {price.change for price in prices} >= {"none", "strategy", "static membership", "session timeout"}
    assert changes(spark, lake, prices[0].group_id) == [p for p in prices if p.group_id == prices[0].group_id]
    assert {path.suffix for path in paths} == {".html", ".md", ".csv"}
    assert reported.keys() <= CAUSES.keys() - {"unknown"}
    assert sum(reported.values()) >= lines_of_kind(lake, "rebalance_started")
    assert all(name in html for name in (*STRATEGIES, ACTUAL, "<svg", "rebalances in "))
    assert "http" not in html.replace("http-equiv", "")  # nothing is loaded from anywhere
    assert f" to {datetime.fromtimestamp(last_line_us(lake) / 1e6, UTC):%Y-%m-%d %H:%M} UTC" in html
    stored = {row.group_id: row for row in opened(spark, lake, "timeout_advice").collect()}
    read = advise_timeouts(spark, lake)
    assert read
    assert all(row.recommended_ms == stored[row.group_id].recommended_ms for row in read)
    assert any(row.recommended_ms != read[n].recommended_ms for n, row in enumerate(advise_timeouts(spark, lake, 50.0)))


def last_line_us(lake: Lake) -> int:
    """When the journal's last line was written, from the files themselves."""
    times = [pq.read_table(uri, columns=["at"]).column("at").cast("int64").to_pylist() for uri in lake.bronze.uris()]
    return max(int(at) for of_file in times for at in of_file)


def lines_of_kind(lake: Lake, kind: str) -> int:
    return sum(
        pq.read_table(uri, columns=["kind"]).column("kind").to_pylist().count(kind) for uri in lake.bronze.uris()
    )


def test_the_audit_finds_tampering_and_nothing_in_a_true_history(spark: SparkSession, lake: Lake) -> None:
    advise(spark, lake)
    clean = audit(spark, lake)
    advisor = lake.gold("advisor").uris()[0]
    tamper(advisor, "least_moves", 1_000_000)
    advice = audit(spark, lake)
    tamper(advisor, "least_moves", 0)
    rebalances = lake.gold("rebalances").uris()[0]
    tamper(rebalances, "cause", "because")
    facts = audit(spark, lake)
    tamper(with_kind(lake, "generation_completed"), "payload", None)
    lines = audit(spark, lake)

    assert (clean.findings, clean.lines) == ((), sum(lake.ingested()[1].shards.values()))
    rows = sum(pq.read_table(uri).num_rows for uri in lake.gold("rebalances").uris())
    [impossible] = advice.findings
    assert impossible.text.startswith("advisor: moves >= least_moves does not hold")
    [found] = facts.findings
    assert found.text == f"rebalances has {rows} rows; folding the lines anew gives as many, but others"
    assert {"S1", "S14"} & {found.check for found in lines.findings}


def test_the_audit_of_a_shortened_journal_checks_the_rest(spark: SparkSession, lake: Lake) -> None:
    first = min(lake.bronze.files())

    lake.bronze.rewrite([first.name], [])
    left = audit(spark, lake)
    tamper(with_kind(lake, "generation_completed"), "payload", None)
    tampered = audit(spark, lake)

    assert (left.findings, left.tables) == ((), 0)
    assert 0 < left.lines < sum(lake.ingested()[1].shards.values())
    assert {found.check for found in tampered.findings} == {"S1"}


def test_the_audit_finds_an_epoch_raised_without_a_group(spark: SparkSession, lake: Lake) -> None:
    tables = {uri: pq.read_table(uri) for uri in lake.bronze.uris()}
    lines = [
        (row["seq"], row["group_id"], uri, n)
        for uri, t in tables.items()
        for n, row in enumerate(t.to_pylist())
        if row["shard_id"] == 0
    ]
    last_of_groups = sorted({group_id: (seq, group_id, uri, n) for seq, group_id, uri, n in sorted(lines)}.values())
    seq, group_id, uri, place = last_of_groups[0]
    assert seq < last_of_groups[-1][0]

    epochs = tables[uri].column("epoch").to_pylist()
    epochs[place] += 1
    rewrite(uri, "epoch", epochs)
    found = audit(spark, lake).findings

    assert ("epoch", 0, group_id, seq) in [(each.check, each.shard_id, each.group_id, each.seq) for each in found]


def with_kind(lake: Lake, kind: str) -> str:
    """A file that has a line of this kind."""
    return next(
        uri for uri in lake.bronze.uris() if kind in pq.read_table(uri, columns=["kind"]).column("kind").to_pylist()
    )


def tamper(path: str, column: str, value: str | int | None) -> None:
    """Change one value of a file; without one, a generation in a payload."""
    table = pq.read_table(path)
    values = table.column(column).to_pylist()
    if value is None:
        kinds = table.column("kind").to_pylist()
        place = kinds.index("generation_completed")
        value = values[place].replace('"generation_id": ', '"generation_id": 9')
    else:
        place = 0
    values[place] = value
    rewrite(path, column, values)


def rewrite(path: str, column: str, values: list[Any]) -> None:
    """Give a column of a file other values."""
    table = pq.read_table(path)
    place = table.schema.get_field_index(column)
    field = table.schema.field(column)
    pq.write_table(table.set_column(place, field, pa.array(values, field.type)), path)


def test_compacting_changes_no_row_and_drops_folded_lines(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    before = spark.read.parquet(*lake.bronze.uris()).count()
    (Path(lake.bronze.path) / "part-left-behind.parquet").write_bytes(b"half a file")

    said = list(compact_lake(lake, vacuum_hours=0))
    after = spark.read.parquet(*lake.bronze.uris()).count()
    again = audit(spark, lake)
    list(compact_lake(lake, keep_days=1, vacuum_hours=0))
    of_nothing = audit(spark, lake)

    assert after == before
    assert "bronze: 2 files became 1" in said[0]
    assert not (Path(lake.bronze.path) / "part-left-behind.parquet").exists()
    assert again.findings == of_nothing.findings == ()
    assert lake.bronze.uris() == []
    assert len(lake.gold("rebalances").uris()) == 1
