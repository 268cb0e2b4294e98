"""The report that an on-call engineer reads in two minutes: present troubles, worst rebalances, groups, advice."""

from __future__ import annotations

import time
from collections import Counter
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
from rota.pipeline.session import QUICK
from rota.pipeline.tables import FOLDED, GOLD, OPEN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

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
_MOMENTS = ("started_at", "ended_at", "from_at", "to_at", "joined_at", "first_at", "last_at", "at")
"""The columns with the moments of lines: the last of all is the journal's end."""
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
    # A session of its own, for its settings and its views.
    spark = lake.spark.newSession()
    for name, value in QUICK.items():
        spark.conf.set(name, value)
    tables = Snapshot(Lake(spark, lake.root))
    of, facts = _views(spark, tables, since or timedelta(days=days), groups)
    now, troubles = right_now(spark, of)
    worst, of_each_group = incidents.longest(spark, of, _WORST)
    steps = group_sections.rebalances(spark, of)
    suffering = sections.worst_groups(steps)
    latest_advice = group_sections.latest_timeouts(spark)
    advice = group_sections.advice(spark, latest_advice)
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
        sections.timeouts(latest_advice),
        *(question(spark) for fact, question in sections.QUESTIONS if facts[fact]),
        sections.failovers(spark) if facts["failovers"] and not groups else None,
        *group_sections.one_by_one(steps, of_each_group, list(dict.fromkeys(mentioned))[:_IN_DETAIL], advice),
    ]
    shown = [section for section in found if section is not None]
    return Page(_title(groups), _headline(spark, of, len(troubles), whole=not groups), shown)


def _title(groups: Collection[GroupName]) -> str:
    named = ", ".join(f"{namespace}/{group_id}" for namespace, group_id in groups)
    return f"Rota: what {named or 'the groups'} went through"


def _views(
    spark: SparkSession, tables: Snapshot, since: datetime | timedelta, groups: Collection[GroupName]
) -> tuple[Period, Counter[str]]:
    """Make the views that the sections read, and count the rows of each table.

    `facts` are the closed rows of all time, `current` the groups with their open rows. `o_TABLE` are open rows,
    `r_TABLE` closed and open ones of the period: one table in memory, of which Spark reads the files once. Rows that
    bear a time after the last lines were read are in none of the latter: a clock was ahead.
    """
    of_groups = _condition(groups)
    current = tables.current.where(of_groups).drop("carry").cache()
    current.createOrReplaceTempView("current")
    if groups:
        _check_groups(current, groups)
    tables.facts().where(of_groups).createOrReplaceTempView("facts")
    of = _period(spark, tables, since)
    closed = tables.facts().unionByName(tables.advice().where(of_groups), allowMissingColumns=True)
    wanted = " OR ".join(f"fact = '{table}' AND {_in_period(table, of)}" for table in _TIMES)
    recent = closed.where(of_groups).where(wanted).cache()
    counts: Counter[str] = Counter(dict(recent.groupBy("fact").count().collect()))
    for table, column in _TIMES.items():
        rows = recent.where(recent.fact == table).select(*GOLD[table].schema.names)
        if table in FOLDED:
            opened = current.selectExpr(f"inline(open.{table})") if table in OPEN else rows.limit(0)
            opened.createOrReplaceTempView(f"o_{table}")
            since_then = "true" if table in _FROM_BEFORE else _since(column, of)
            rows = rows.unionByName(opened.where(f"{since_then} AND {_until(table, of)}"))
        rows.createOrReplaceTempView(f"r_{table}")
    return of, counts


def _condition(groups: Collection[GroupName]) -> Column:
    from pyspark.sql import functions as F

    each = [(F.col("namespace") == namespace) & (F.col("group_id") == group_id) for namespace, group_id in groups]
    return reduce(or_, each) if each else F.lit(True)


def _check_groups(current: DataFrame, groups: Collection[GroupName]) -> None:
    there = {tuple(row) for row in current.select("namespace", "group_id").collect()}
    if missing := [f"{namespace}/{group_id}" for namespace, group_id in groups if (namespace, group_id) not in there]:
        raise NothingFound(f"the tables have no group {', '.join(missing)}: name it as NAMESPACE/GROUP")


def _in_period(table: str, of: Period) -> str:
    return f"{_since(_TIMES[table], of)} AND {_until(table, of)}"


def _since(column: str, of: Period) -> str:
    # A row of an hour has what came in that hour, also if the period begins within it.
    return f"{column} >= " + (f"date_trunc('HOUR', {literal(of.begin)})" if column == "hour" else literal(of.begin))


def _until(table: str, of: Period) -> str:
    until = f"{_TIMES[table]} <= {literal(of.latest)}"
    return f"{until} AND (ended_at IS NULL OR ended_at <= {literal(of.latest)})" if table == "rebalances" else until


def _period(spark: SparkSession, tables: Snapshot, since: datetime | timedelta) -> Period:
    latest = latest_line(tables.read_at_s(), time.time())
    opened = ", ".join(
        f"transform(open.{table}, row -> row.{column})"
        for table in OPEN
        for column in _MOMENTS
        if column in GOLD[table].schema.names
    )
    [found] = all_rows(
        spark,
        f"""SELECT min(unix_micros(moment)) DIV 1000 AS first_ms, max(unix_micros(moment)) DIV 1000 AS last_ms
            FROM (SELECT explode(array({", ".join(_MOMENTS)})) AS moment FROM facts
                UNION ALL SELECT explode(concat({opened})) FROM current)
            WHERE moment <= {literal(latest)}""",
    )
    first, last = (None if ms is None else moment(ms) for ms in (found["first_ms"], found["last_ms"]))
    return period(first, last, latest, since)


def _headline(spark: SparkSession, of: Period, troubles: int, *, whole: bool) -> dict[str, str]:
    later = f"started_at > {literal(of.latest)} OR ended_at > {literal(of.latest)}"
    [row] = all_rows(
        spark,
        f"""SELECT count(*) AS rebalances, count(DISTINCT namespace, group_id) AS groups,
               count_if(outcome IN {WASTED}) AS wasted,
               percentile_approx(duration_ms, 0.5) AS p50, percentile_approx(duration_ms, 0.99) AS p99,
               (SELECT coalesce(sum(times), 0) FROM r_fenced) AS fenced,
               (SELECT count(*) FROM r_failovers WHERE from_replica <> '') AS failovers,
               (SELECT count(*) FROM facts WHERE fact = 'rebalances' AND ({later})) AS ahead,
               (SELECT count(*) FROM o_rebalances WHERE {later}) AS open_ahead
           FROM r_rebalances WHERE outcome <> 'reassigned'""",
    )
    facts = {
        "period": f"{of.begin:%Y-%m-%d %H:%M} to {of.end:%Y-%m-%d %H:%M} UTC",
        "wrong right now": f"{troubles:,}",
        "groups that rebalanced": f"{row['groups']:,}",
        "rebalances": f"{row['rebalances']:,}",
        "interrupted or failed": f"{row['wasted']:,}",
        "half took at most": duration(row["p50"]),
        "99 of 100 at most": duration(row["p99"]),
        "stale requests refused": f"{row['fenced']:,}",
    }
    if whole:
        facts["shards taken over"] = f"{row['failovers']:,}"
    if ahead := row["ahead"] + row["open_ahead"]:
        facts["left out: a clock was ahead"] = f"{ahead:,} rebalances"
    return facts
