"""Uses of the facts: the report, the advice and the audit, which finds nothing unless something is wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rota.pipeline.advisor import ACTUAL, STRATEGIES, advise, changes
from rota.pipeline.audit import audit
from rota.pipeline.batches import Batches, progress_of, start
from rota.pipeline.lake import ADVICE_TABLE, FACTS_TABLE, LINES_TABLE, Lake, Snapshot
from rota.pipeline.report import make_report
from rota.protocol.causes import CAUSES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


@pytest.fixture
def lake(spark: SparkSession, postgres_url: str, lake_folder: Path) -> Lake:
    """Tables of a small fleet's journal."""
    lake = Lake(spark, str(lake_folder))
    list(progress_of(start(Batches(lake), {"url": postgres_url})))
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
def test_the_report_shows_every_cause_and_is_one_file(lake: Lake, tmp_path: Path) -> None:
    rows = advise(lake)
    prices = changes(lake)

    paths = make_report(lake, days=1).write(tmp_path / "out")

    html = (tmp_path / "out" / "index.html").read_text()
    causes = (tmp_path / "out" / "causes.csv").read_text().splitlines()[1:]
    reported = {line.split(",")[0]: int(line.split(",")[1]) for line in causes}
    lines = Snapshot(lake).lines()
    assert rows > 0
    assert {price.change for price in prices} >= {"none", "strategy", "static membership", "session timeout"}
    assert changes(lake, prices[0].group_id) == [p for p in prices if p.group_id == prices[0].group_id]
    assert {path.suffix for path in paths} == {".html", ".md", ".csv"}
    assert reported.keys() <= CAUSES.keys() - {"unknown"}
    assert sum(reported.values()) >= lines.where("kind = 'rebalance_started'").count()
    assert all(name in html for name in (*STRATEGIES, ACTUAL, "<svg", "rebalances in "))
    assert "http" not in html.replace("http-equiv", "")  # nothing is loaded from anywhere
    [last] = lines.selectExpr("unix_micros(max(at))").collect()
    assert f" to {datetime.fromtimestamp(last[0] / 1e6, UTC):%Y-%m-%d %H:%M} UTC" in html


def test_the_audit_finds_tampering_and_nothing_in_a_true_history(lake: Lake) -> None:
    advise(lake)
    clean = audit(lake)
    change(lake, ADVICE_TABLE, "least_moves = 1000000", "fact = 'advisor'")
    advice = audit(lake)
    change(lake, ADVICE_TABLE, "least_moves = 0", "fact = 'advisor'")
    change(lake, FACTS_TABLE, "cause = 'because'", "fact = 'rebalances'")
    facts = audit(lake)
    generation = "payload = replace(payload, '\"generation_id\": ', '\"generation_id\": 9')"
    change(lake, LINES_TABLE, generation, "kind = 'generation_completed'")
    lines = audit(lake)

    assert (clean.findings, clean.lines) == ((), Snapshot(lake).lines().count())
    assert all(found.text.startswith("advisor: moves >= least_moves does not hold") for found in advice.findings)
    assert advice.findings
    rows = Snapshot(lake).closed("rebalances").count()
    assert [found.text for found in facts.findings] == [
        f"rebalances has {rows} rows; folding the lines anew gives as many, but others"
    ]
    assert {"S1", "S14"} & {found.check for found in lines.findings}


def test_the_audit_of_a_shortened_journal_checks_the_rest(lake: Lake) -> None:
    before = Snapshot(lake).lines().count()

    lake.spark.sql(f"DELETE FROM delta.`{lake.root}/{LINES_TABLE}` WHERE seq <= 200")
    left = audit(lake)

    assert (left.findings, left.tables) == ((), 0)
    assert 0 < left.lines < before


def change(lake: Lake, table: str, values: str, condition: str = "true") -> None:
    """Change rows of a table behind the pipeline's back."""
    lake.spark.sql(f"UPDATE delta.`{lake.root}/{table}` SET {values} WHERE {condition}")
