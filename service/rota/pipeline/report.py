"""What an on-call engineer reads in two minutes: which groups suffer, from what, since when, and what would help."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from rota.pipeline import sections
from rota.pipeline.facts.outcomes import WASTED
from rota.pipeline.frames import closed, everything
from rota.pipeline.lake import Lake
from rota.pipeline.pages import Page, duration
from rota.pipeline.tables import FOLDED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_TIMES = {
    "rebalances": "started_at",
    "group_states": "from_at",
    "leader_tenures": "from_at",
    "members": "joined_at",
    "timeout_advice": "at",
    "assignments": "at",
    "offsets": "hour",
    "fenced": "hour",
    "failovers": "at",
    "advisor": "at",
}
"""By which column a row of each table belongs to a time."""


def make_report(spark: SparkSession, lake: Lake, *, days: float = 7.0) -> Page:
    """The last `days` of what is in the facts, counted back from their end."""
    tables = lake.moment()
    rebalances = everything(spark, tables, "rebalances")
    end, begin = _period(rebalances, days)
    for table, time in _TIMES.items():
        rows = everything(spark, tables, table) if table in FOLDED else closed(spark, tables, table)
        rows.where(f"{time} >= timestamp'{begin:%Y-%m-%d %H:%M:%S}'").cache().createOrReplaceTempView(f"r_{table}")
    found = [
        sections.worst_groups(spark),
        sections.causes(spark, begin, end),
        sections.storms(spark),
        sections.durations(spark),
        sections.churn(spark),
        sections.strategies(spark),
        sections.leader_gaps(spark),
        sections.flapping(spark),
        sections.timeouts(spark),
        sections.stalls(spark),
        sections.fenced(spark),
        sections.failovers(spark),
    ]
    told = [section for section in found if section is not None]
    return Page("Rota: what the groups went through", _headline(spark, begin, end), told)


def _period(rebalances: DataFrame, days: float) -> tuple[datetime, datetime]:
    """Its end and its beginning, in UTC and without saying so, as Spark's literals are in our sessions.

    Timestamps that Spark gives to Python are in this machine's zone, so they travel as numbers.
    """
    first, last = "unix_micros(min(started_at)) AS a", "unix_micros(max(coalesce(ended_at, started_at))) AS b"
    found = rebalances.selectExpr(first, last).first()
    if found is None or found.b is None:
        now = datetime.now(UTC).replace(tzinfo=None)
        return now, now - timedelta(days=days)
    began, ended = (datetime.fromtimestamp(us / 1e6, UTC).replace(tzinfo=None) for us in found)
    return ended, max(began, ended - timedelta(days=days))


def _headline(spark: SparkSession, begin: datetime, end: datetime) -> dict[str, str]:
    [row] = sections.all_rows(
        spark,
        f"""SELECT count(*) AS rebalances, count(DISTINCT namespace, group_id) AS groups,
               count_if(outcome IN {WASTED}) AS wasted,
               percentile_approx(duration_ms, 0.5) AS p50, percentile_approx(duration_ms, 0.99) AS p99
           FROM r_rebalances WHERE outcome <> 'reassigned'""",
    )
    [failovers] = sections.all_rows(spark, "SELECT count(*) AS n FROM r_failovers WHERE from_replica <> ''")
    [fenced] = sections.all_rows(spark, "SELECT coalesce(sum(times), 0) AS n FROM r_fenced")
    return {
        "period": f"{begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC",
        "groups": f"{row['groups']:,}",
        "rebalances": f"{row['rebalances']:,}",
        "interrupted or failed": f"{row['wasted']:,}",
        "half took at most": duration(row["p50"]),
        "99 of 100 at most": duration(row["p99"]),
        "shards taken over": f"{failovers['n']:,}",
        "stale requests refused": f"{fenced['n']:,}",
    }
