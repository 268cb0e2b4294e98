"""The report that an on-call engineer reads in two minutes: present troubles, worst rebalances, groups, advice."""

from __future__ import annotations

import time
from collections.abc import Collection
from datetime import datetime, timedelta
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from rota.pipeline import group_sections, incidents, sections
from rota.pipeline.facts.rebalances import WASTED
from rota.pipeline.failures import NothingFound
from rota.pipeline.lake import Lake, Snapshot, all_rows, literal
from rota.pipeline.now import right_now
from rota.pipeline.pages import Page, duration
from rota.pipeline.period import Period, latest_line, moment, period
from rota.pipeline.tables import FOLDED, GOLD

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

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
    "what_ifs": "at",
    "unreadable": "at",
}
"""By which column a row of each table belongs to a time."""
_LAST = {
    "rebalances": ("started_at", "ended_at"),
    "group_states": ("from_at", "to_at"),
    "leader_tenures": ("from_at",),
    "members": ("joined_at", "ended_at"),
    "offsets": ("last_at",),
    "fenced": ("first_at",),
    "failovers": ("at",),
    "heartbeats": ("to_at",),
}
"""The moments of lines in each table: the last of all is the journal's end."""
_FROM_BEFORE = ("rebalances", "group_states")
"""Open rows of these belong to the period also if they began before."""
_WORST = 10
_IN_DETAIL = 40

GroupName = tuple[str, str]


def make_report(
    lake: Lake,
    *,
    days: float = 7.0,
    since: datetime | timedelta | None = None,
    groups: Collection[GroupName] = (),
) -> Page:
    """The facts of the last `days`, or `since` then, up to the journal's end; of all groups, or of these.

    Raises `NothingFound` if one of the groups is not in the tables.
    """
    spark, tables = lake.spark, Snapshot(lake)
    of = _views(spark, tables, since or timedelta(days=days), groups)
    now, troubles = right_now(spark, of)
    worst = incidents.longest(spark, of, _WORST)
    suffering = sections.worst_groups(spark, of)
    advice = group_sections.advice(spark)
    mentioned = [
        *groups,
        *(one.group for one in troubles),
        *((one["namespace"], one["group_id"]) for one in worst),
        *suffering.groups,
        *(one.group for one in advice),
    ]
    found = [
        now,
        incidents.worst_rebalances(tables, of, worst),
        suffering.section,
        group_sections.advice_section(advice),
        sections.causes(spark, of),
        sections.storms(spark),
        sections.durations(spark),
        sections.churn(spark),
        sections.strategies(spark),
        sections.leader_gaps(spark),
        sections.flapping(spark),
        sections.timeouts(spark),
        sections.stalls(spark),
        sections.fenced(spark),
        sections.unreadable(spark),
        None if groups else sections.failovers(spark),
        *group_sections.one_by_one(spark, of, list(dict.fromkeys(mentioned))[:_IN_DETAIL], advice),
    ]
    shown = [section for section in found if section is not None]
    return Page(_title(groups), _headline(spark, of, len(troubles), whole=not groups), shown)


def _title(groups: Collection[GroupName]) -> str:
    named = ", ".join(f"{namespace}/{group_id}" for namespace, group_id in groups)
    return f"Rota: what {named or 'the groups'} went through"


def _views(spark: SparkSession, tables: Snapshot, since: datetime | timedelta, groups: Collection[GroupName]) -> Period:
    """Make the views that the sections read: `c_` closed rows, `o_` open ones, `r_` both, of the period.

    Rows that bear a time after the last lines were read are in none of the latter: a clock was ahead.
    """
    from pyspark.sql import functions as F

    of_groups = _condition(groups)
    tables.current.cache()
    for table in {*_TIMES, *_LAST}:
        of_table = of_groups if "group_id" in GOLD[table].schema.names else F.lit(True)
        tables.closed(table).where(of_table).createOrReplaceTempView(f"c_{table}")
        if table in FOLDED:
            tables.opened(table).where(of_table).createOrReplaceTempView(f"o_{table}")
    of = _period(spark, tables, since)
    if groups:
        _check_groups(spark, groups)
    for table, column in _TIMES.items():
        spark.sql(_of_period(table, column, of)).cache().createOrReplaceTempView(f"r_{table}")
    return of


def _condition(groups: Collection[GroupName]) -> Column:
    from pyspark.sql import functions as F

    each = [(F.col("namespace") == namespace) & (F.col("group_id") == group_id) for namespace, group_id in groups]
    return reduce(or_, each) if each else F.lit(True)


def _check_groups(spark: SparkSession, groups: Collection[GroupName]) -> None:
    known = "SELECT namespace, group_id FROM c_group_states UNION SELECT namespace, group_id FROM o_group_states"
    there = {(row["namespace"], row["group_id"]) for row in all_rows(spark, known)}
    if missing := [f"{namespace}/{group_id}" for namespace, group_id in groups if (namespace, group_id) not in there]:
        raise NothingFound(f"the tables have no group {', '.join(missing)}: name it as NAMESPACE/GROUP")


def _of_period(table: str, column: str, of: Period) -> str:
    # A row of an hour has what came in that hour, also if the period begins within it.
    begin = f"date_trunc('HOUR', {literal(of.begin)})" if column == "hour" else literal(of.begin)
    until = f"{column} <= {literal(of.latest)}"
    if table == "rebalances":
        until += f" AND (ended_at IS NULL OR ended_at <= {literal(of.latest)})"
    rows = f"SELECT * FROM c_{table} WHERE {column} >= {begin} AND {until}"
    if table not in FOLDED:
        return rows
    since = "true" if table in _FROM_BEFORE else f"{column} >= {begin}"
    return f"{rows} UNION ALL SELECT * FROM o_{table} WHERE {since} AND {until}"


def _period(spark: SparkSession, tables: Snapshot, since: datetime | timedelta) -> Period:
    latest = latest_line(tables.read_at_s(), time.time())
    views = [(f"{kind}_{table}", column) for table, columns in _LAST.items() for column in columns for kind in "co"]
    moments = " UNION ALL ".join(
        f"SELECT unix_micros(min({column})) AS a, unix_micros(max({column})) AS b FROM {view}"
        f" WHERE {column} <= {literal(latest)}"
        for view, column in views
    )
    [found] = all_rows(spark, f"SELECT min(a) DIV 1000 AS first_ms, max(b) DIV 1000 AS last_ms FROM ({moments})")
    first, last = (None if ms is None else moment(ms) for ms in (found["first_ms"], found["last_ms"]))
    return period(first, last, latest, since)


def _headline(spark: SparkSession, of: Period, troubles: int, *, whole: bool) -> dict[str, str]:
    [row] = all_rows(
        spark,
        f"""SELECT count(*) AS rebalances, count(DISTINCT namespace, group_id) AS groups,
               count_if(outcome IN {WASTED}) AS wasted,
               percentile_approx(duration_ms, 0.5) AS p50, percentile_approx(duration_ms, 0.99) AS p99
           FROM r_rebalances WHERE outcome <> 'reassigned'""",
    )
    [fenced] = all_rows(spark, "SELECT coalesce(sum(times), 0) AS n FROM r_fenced")
    facts = {
        "period": f"{of.begin:%Y-%m-%d %H:%M} to {of.end:%Y-%m-%d %H:%M} UTC",
        "wrong right now": f"{troubles:,}",
        "groups that rebalanced": f"{row['groups']:,}",
        "rebalances": f"{row['rebalances']:,}",
        "interrupted or failed": f"{row['wasted']:,}",
        "half took at most": duration(row["p50"]),
        "99 of 100 at most": duration(row["p99"]),
        "stale requests refused": f"{fenced['n']:,}",
    }
    if whole:
        [failovers] = all_rows(spark, "SELECT count(*) AS n FROM r_failovers WHERE from_replica <> ''")
        facts["shards taken over"] = f"{failovers['n']:,}"
    if ahead := _ahead(spark, of):
        facts["left out: a clock was ahead"] = f"{ahead:,} rebalances"
    return facts


def _ahead(spark: SparkSession, of: Period) -> int:
    later = f"started_at > {literal(of.latest)} OR ended_at > {literal(of.latest)}"
    both = f"SELECT * FROM c_rebalances WHERE {later} UNION ALL SELECT * FROM o_rebalances WHERE {later}"
    return int(all_rows(spark, f"SELECT count(*) AS n FROM ({both})")[0]["n"])
