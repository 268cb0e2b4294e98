"""What an on-call engineer reads in two minutes: which groups suffer, from what, since when, and what would help."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from rota.pipeline.charts import Bars
from rota.pipeline.facts.causes import CAUSES
from rota.pipeline.frames import closed, everything
from rota.pipeline.lake import Lake
from rota.pipeline.pages import Chart, Page, Section
from rota.pipeline.timeouts import Advice, advise_timeouts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BINS = 48
_TOP = 10
STORM = 6
"""So many rebalances of one group within ten minutes are a storm."""


def make_report(spark: SparkSession, lake: Lake, *, days: float = 7.0) -> Page:
    """The last `days` of what is in the facts, counted back from their end."""
    rebalances = everything(spark, lake, "rebalances")
    end, begin = _period(rebalances, days)
    frames = {table: _since(spark, lake, table, begin) for table in _TIMES}
    for table, frame in frames.items():
        frame.createOrReplaceTempView(f"r_{table}")
    advice = advise_timeouts(spark, lake)
    closed(spark, lake, "advisor").where(f"at >= timestamp'{begin:%Y-%m-%d %H:%M:%S}'").createOrReplaceTempView(
        "r_advisor"
    )
    sections = [
        _worst_groups(spark),
        _causes(spark, begin, end),
        _storms(spark),
        _durations(spark),
        _churn(spark),
        _strategies(spark),
        _leader_gaps(spark),
        _flapping(spark),
        _timeouts(advice),
        _stalls(spark),
        _fenced(spark),
        _failovers(spark),
    ]
    return Page(
        "Rota: what the groups went through", _headline(spark, begin, end), [s for s in sections if s is not None]
    )


_TIMES = {
    "rebalances": "started_at",
    "group_states": "from_at",
    "leader_tenures": "from_at",
    "members": "joined_at",
    "assignments": "at",
    "offsets": "hour",
    "fenced": "hour",
    "failovers": "at",
}


def _since(spark: SparkSession, lake: Lake, table: str, begin: datetime) -> DataFrame:
    frame = everything(spark, lake, table)
    return frame.where(f"{_TIMES[table]} >= timestamp'{begin:%Y-%m-%d %H:%M:%S}'").cache()


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
    row = _one(
        spark,
        """SELECT count(*) AS rebalances, count(DISTINCT namespace, group_id) AS groups,
               count_if(outcome = 'superseded' OR outcome = 'assignment_failed') AS wasted,
               percentile_approx(duration_ms, 0.5) AS p50, percentile_approx(duration_ms, 0.99) AS p99
           FROM r_rebalances WHERE outcome <> 'reassigned'""",
    )
    failovers = _one(spark, "SELECT count(*) AS n FROM r_failovers WHERE from_replica <> ''")["n"]
    fenced = _one(spark, "SELECT coalesce(sum(times), 0) AS n FROM r_fenced")["n"]
    return {
        "period": f"{begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC",
        "groups": f"{row['groups']:,}",
        "rebalances": f"{row['rebalances']:,}",
        "interrupted or failed": f"{row['wasted']:,}",
        "half took at most": _ms(row["p50"]),
        "99 of 100 at most": _ms(row["p99"]),
        "shards taken over": f"{failovers:,}",
        "stale requests refused": f"{fenced:,}",
    }


def _worst_groups(spark: SparkSession) -> Section:
    rows = _all(
        spark,
        f"""WITH unstable AS (
                SELECT namespace, group_id, sum(ms) AS ms FROM r_group_states
                WHERE state IN ('PreparingRebalance', 'CompletingRebalance') GROUP BY 1, 2),
            causes AS (
                SELECT namespace, group_id, cause, count(*) AS n FROM r_rebalances GROUP BY 1, 2, 3),
            ranked AS (SELECT *, row_number() OVER (PARTITION BY namespace, group_id ORDER BY n DESC, cause) AS place,
                sum(n) OVER (PARTITION BY namespace, group_id) AS total FROM causes)
            SELECT namespace, group_id, total, coalesce(ms, 0) AS ms, cause, n FROM ranked
            LEFT JOIN unstable USING (namespace, group_id) WHERE place = 1
            ORDER BY total DESC, group_id LIMIT {_TOP}""",
    )
    return Section(
        "worst-groups",
        "Groups that rebalance most",
        "Nobody works on what moves while a group agrees. Begin with the first cause of the first group.",
        ("group", "rebalances", "time agreeing", "most frequent cause", "of them"),
        [(_group(r), r["total"], _ms(r["ms"]), r["cause"], r["n"]) for r in rows],
    )


def _causes(spark: SparkSession, begin: datetime, end: datetime) -> Section:
    seconds = max(60.0, (end - begin).total_seconds() / _BINS)
    rows = _all(
        spark,
        f"""SELECT cause, least({_BINS - 1}, cast((unix_timestamp(started_at) - unix_timestamp(timestamp'{begin}'))
            / {seconds} AS int)) AS bin, count(*) AS n FROM r_rebalances GROUP BY 1, 2""",
    )
    totals: dict[str, int] = {}
    for row in rows:
        totals[row["cause"]] = totals.get(row["cause"], 0) + row["n"]
    order = sorted(totals, key=lambda cause: (-totals[cause], cause))
    series = {cause: [0.0] * _BINS for cause in order}
    for row in rows:
        series[row["cause"]][max(0, row["bin"])] += row["n"]
    wide = (end - begin) > timedelta(days=2)
    moments = (begin + timedelta(seconds=seconds * place) for place in range(_BINS))
    labels = [f"{moment:%d %b}" if wide else f"{moment:%H:%M}" for moment in moments]
    unit = f"rebalances in {_ms(seconds * 1000)}"
    return Section(
        "causes",
        "Why groups rebalanced",
        "Each rebalance has one cause: the line of the journal that came right before it.",
        ("cause", "rebalances", "meaning"),
        [(cause, totals[cause], CAUSES[cause]) for cause in order],
        Chart("bars", Bars(labels, {cause: series[cause] for cause in order}, unit)),
    )


def _storms(spark: SparkSession) -> Section | None:
    rows = _all(
        spark,
        f"""SELECT namespace, group_id, date_format(w.start, 'yyyy-MM-dd HH:mm') AS began, count(*) AS n,
                sum(duration_ms) AS took, mode(cause) AS why
            FROM (SELECT *, window(started_at, '10 minutes') AS w FROM r_rebalances)
            GROUP BY 1, 2, w.start HAVING count(*) >= {STORM} ORDER BY n DESC, began LIMIT {_TOP}""",
    )
    return _unless_empty(
        "storms",
        "Storms",
        f"{STORM} rebalances or more of one group within ten minutes.",
        ("group", "from (UTC)", "rebalances", "time agreeing", "mostly because"),
        [(_group(r), r["began"], r["n"], _ms(r["took"]), r["why"]) for r in rows],
    )


def _durations(spark: SparkSession) -> Section:
    columns = ", ".join(
        f"percentile_approx({name}, array(0.5, 0.95, 0.99)) AS of_{name}"
        for name in ("join_ms", "sync_ms", "duration_ms")
    )
    rows = _all(
        spark,
        f"SELECT outcome, count(*) AS n, {columns} FROM r_rebalances WHERE outcome NOT IN ('', 'reassigned')"
        " GROUP BY 1 ORDER BY n DESC",
    )
    return Section(
        "durations",
        "How long rebalances took",
        "The join phase waits for the slowest member, the sync phase for the leader. 50 / 95 / 99 of 100 took at most:",
        ("outcome", "rebalances", "join phase", "sync phase", "altogether"),
        [
            (r["outcome"], r["n"], *(_three(r[f"of_{name}"]) for name in ("join_ms", "sync_ms", "duration_ms")))
            for r in rows
        ],
    )


def _churn(spark: SparkSession) -> Section | None:
    rows = _all(
        spark,
        f"""SELECT namespace, group_id, protocol_name, sum(moves) AS moved, sum(least_moves) AS least,
                max(imbalance) AS uneven, avg(units) AS held FROM r_assignments WHERE units > 0
            GROUP BY 1, 2, 3 HAVING moved > 0 ORDER BY moved - least DESC, moved DESC, group_id LIMIT {_TOP}""",
    )
    return _unless_empty(
        "churn",
        "Units that moved without need",
        "A move costs the new holder its caches. The least possible is what an even assignment needs.",
        ("group", "strategy", "moves", "least possible", "units", "worst imbalance"),
        [(_group(r), r["protocol_name"], r["moved"], r["least"], f"{r['held']:.0f}", r["uneven"]) for r in rows],
    )


def _strategies(spark: SparkSession) -> Section | None:
    rows = _all(
        spark,
        """SELECT assignor, sum(moves) AS moved, sum(least_moves) AS least, sum(paused_units) AS paused,
               sum(rounds) AS phases, max(imbalance) AS uneven FROM r_advisor
           GROUP BY 1 ORDER BY assignor = '(actual)' DESC, moved DESC""",
    )
    found = _unless_empty(
        "strategies",
        "What other strategies would have done",
        "The real history of members of all groups, assigned anew with each strategy from the beginning.",
        ("strategy", "moves", "least possible", "units paused", "join phases", "worst imbalance"),
        [(r["assignor"], r["moved"], r["least"], r["paused"], r["phases"], r["uneven"]) for r in rows],
    )
    if found is None:
        return None
    bars = [(r["assignor"], float(r["moved"]), float(r["least"])) for r in rows]
    return found.with_chart(Chart("levels", bars, "units moved", "the least possible"))


def _leader_gaps(spark: SparkSession) -> Section | None:
    rows = _all(
        spark,
        f"""SELECT namespace, group_id, count(*) AS n, max(gap_ms) AS longest, sum(gap_ms) AS total
            FROM r_leader_tenures WHERE gap_ms > 0 GROUP BY 1, 2 ORDER BY longest DESC LIMIT {_TOP}""",
    )
    return _unless_empty(
        "leaders",
        "Time without a leader",
        "From the moment when the coordinator let the old leader go to the next one's first generation.",
        ("group", "times", "longest", "altogether"),
        [(_group(r), r["n"], _ms(r["longest"]), _ms(r["total"])) for r in rows],
    )


def _flapping(spark: SparkSession) -> Section | None:
    rows = _all(
        spark,
        f"""SELECT namespace, group_id, client_id, count(*) AS n, percentile_approx(ms, 0.5) AS p50,
                count_if(end = 'expired') AS expired FROM r_members GROUP BY 1, 2, 3
            HAVING count(*) >= 6 ORDER BY n DESC, client_id LIMIT {_TOP}""",
    )
    return _unless_empty(
        "flapping",
        "Members that come and go",
        "Six stays or more. An autoscaler that changes its mind and a crash loop look like this.",
        ("group", "client", "stays", "half lasted at most", "ended by expiry"),
        [(_group(r), r["client_id"], r["n"], _ms(r["p50"]), r["expired"]) for r in rows],
    )


def _timeouts(advice: list[Advice]) -> Section | None:
    told = [
        (
            f"{a.namespace}/{a.group_id}",
            _ms(a.session_timeout_ms),
            _ms(a.recommended_ms),
            _ms(a.longest_gap_ms),
            f"{a.false_expiries_per_day:.3f}",
            ("-" if a.detection_saved_ms < 0 else "") + _ms(abs(a.detection_saved_ms)),
        )
        for a in advice
        if a.recommended_ms is not None and abs(a.detection_saved_ms) > a.session_timeout_ms * 0.2
    ][:_TOP]
    return _unless_empty(
        "timeouts",
        "Session timeouts that could change",
        "From how regularly members were heard. False expiries are per member and day, at today's timeout.",
        ("group", "today", "recommended", "longest gap", "false expiries", "a death is noticed sooner by"),
        told,
    )


def _stalls(spark: SparkSession) -> Section | None:
    rows = _all(
        spark,
        f"""SELECT namespace, group_id, topic, partition, max(stall_ms) AS stall, sum(commits) AS written,
                sum(went_back) AS back FROM r_offsets GROUP BY 1, 2, 3, 4
            HAVING max(stall_ms) > 600000 OR sum(went_back) > 0 ORDER BY stall DESC LIMIT {_TOP}""",
    )
    return _unless_empty(
        "stalls",
        "Partitions that stood still",
        "Longer than ten minutes without a commit, or progress that went back.",
        ("group", "partition", "longest stall", "commits", "went back"),
        [(_group(r), f"{r['topic']}/{r['partition']}", _ms(r["stall"]), r["written"], r["back"]) for r in rows],
    )


def _fenced(spark: SparkSession) -> Section | None:
    rows = _all(
        spark,
        f"""SELECT namespace, group_id, operation, error, sum(times) AS n, max(after_ms) AS late FROM r_fenced
            GROUP BY 1, 2, 3, 4 ORDER BY n DESC LIMIT {_TOP}""",
    )
    return _unless_empty(
        "fenced",
        "Stale requests that were refused",
        "Somebody acted in the name of a member that was no longer one. Each would have been a second writer.",
        ("group", "operation", "error", "times", "latest after its end"),
        [(_group(r), r["operation"], r["error"], r["n"], _ms(r["late"])) for r in rows],
    )


def _failovers(spark: SparkSession) -> Section | None:
    rows = _all(
        spark,
        f"""SELECT to_replica, count(*) AS n, count_if(graceful) AS graceful, max(gap_ms) AS gap FROM r_failovers
            WHERE from_replica <> '' GROUP BY 1 ORDER BY n DESC LIMIT {_TOP}""",
    )
    return _unless_empty(
        "failovers",
        "Shards that changed hands",
        "Handed over in order, or taken after a lease had run out.",
        ("to replica", "shards", "handed over in order", "longest gap of those"),
        [(r["to_replica"], r["n"], r["graceful"], _ms(r["gap"])) for r in rows],
    )


def _unless_empty(
    name: str, title: str, sentence: str, columns: tuple[str, ...], rows: list[tuple[Any, ...]]
) -> Section | None:
    return Section(name, title, sentence, columns, rows) if rows else None


def _all(spark: SparkSession, query: str) -> list[dict[str, Any]]:
    return [row.asDict() for row in spark.sql(query).collect()]


def _one(spark: SparkSession, query: str) -> dict[str, Any]:
    return _all(spark, query)[0]


def _group(row: dict[str, Any]) -> str:
    return f"{row['namespace']}/{row['group_id']}"


def _three(values: list[int] | None) -> str:
    return " / ".join(map(_ms, values)) if values else "-"


def _ms(value: float | None) -> str:
    """A duration as people say it."""
    if value is None:
        return "-"
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if value >= size:
            return f"{value / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{value:.0f} ms"
