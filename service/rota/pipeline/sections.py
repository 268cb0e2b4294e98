"""The questions of a report, each a query over the facts since its beginning: the views `r_<table>`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from rota.pipeline.facts.rebalances import OUTCOMES
from rota.pipeline.group_sections import Rebalances, rate
from rota.pipeline.lake import all_rows
from rota.pipeline.pages import Bars, Chart, Link, Section, duration, group_link
from rota.pipeline.period import Period, ms_of
from rota.protocol.causes import CAUSES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MEANINGS: Mapping[str, str] = {cause.value: meaning for cause, meaning in CAUSES.items()}
_BINS = 48
_TOP = 10
STORM = 6
"""So many rebalances of one group within ten minutes are a storm."""
FLAPPING = 3
"""So many join-leave cycles of one client within an hour are worth a look."""


class Suffering(NamedTuple):
    """The section about the groups that rebalance most, and their names."""

    section: Section
    groups: list[tuple[str, str]]


def worst_groups(all_groups: dict[tuple[str, str], Rebalances]) -> Suffering:
    worst = [(group, found) for group, found in all_groups.items() if found.number][:_TOP]
    section = Section(
        "groups",
        "Groups that rebalance most",
        "Units that move are not worked on during a rebalance. Most departures are followed by a join.",
        ("group", "rebalances", "time agreeing", "longest", "causes"),
        [
            (group_link(*group), found.number, duration(found.took_ms), duration(found.longest_ms), found.causes)
            for group, found in worst
        ],
    )
    return Suffering(section, [group for group, _ in worst])


def causes(spark: SparkSession, of: Period) -> Section:
    seconds, number = of.bins(_BINS)
    rows = all_rows(
        spark,
        f"""SELECT cause, cast((unix_micros(started_at) - {ms_of(of.begin)}000) / {seconds * 1e6} AS int) AS bin,
                count(*) AS n FROM r_rebalances GROUP BY ALL""",
    )
    totals: dict[str, int] = {}
    for row in rows:
        totals[row["cause"]] = totals.get(row["cause"], 0) + row["n"]
    order = sorted(totals, key=lambda cause: (-totals[cause], cause))
    series = {cause: [0.0] * number for cause in order}
    for row in rows:
        # Open rows may have begun before.
        series[row["cause"]][min(max(0, row["bin"]), number - 1)] += row["n"]
    moments = (of.begin + timedelta(seconds=seconds * place) for place in range(number))
    look = "%d %b" if of.is_long else "%H:%M:%S" if seconds < 60 else "%H:%M"
    unit = f"rebalances in {duration(seconds * 1000)}"
    return Section(
        "causes",
        "Why groups rebalanced",
        "Each rebalance has one cause: the code that the coordinator gave it when it began.",
        ("cause", "rebalances", "meaning"),
        [(cause, totals[cause], _MEANINGS.get(cause, "a code of a later release")) for cause in order],
        Chart("bars", Bars([f"{at:{look}}" for at in moments], {cause: series[cause] for cause in order}, unit)),
    )


def storms(spark: SparkSession) -> Section | None:
    rows = all_rows(
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
        [(_group(r), r["began"], r["n"], duration(r["took"]), r["why"]) for r in rows],
    )


def durations(spark: SparkSession) -> Section:
    columns = ", ".join(
        f"percentile_approx({name}, array(0.5, 0.95, 0.99)) AS of_{name}"
        for name in ("join_ms", "sync_ms", "duration_ms")
    )
    rows = all_rows(
        spark,
        f"SELECT outcome, count(*) AS n, {columns} FROM r_rebalances WHERE outcome NOT IN ('', 'reassigned')"
        " GROUP BY 1 ORDER BY n DESC",
    )
    return Section(
        "durations",
        "How rebalances ended, and how long they took",
        "The join phase waits for the slowest member, the sync phase for the leader. 50 / 95 / 99 of 100 took at most:",
        ("outcome", "rebalances", "join phase", "sync phase", "altogether", "meaning"),
        [
            (
                r["outcome"],
                r["n"],
                *(_three(r[f"of_{name}"]) for name in ("join_ms", "sync_ms", "duration_ms")),
                OUTCOMES[r["outcome"]],
            )
            for r in rows
        ],
    )


def churn(spark: SparkSession) -> Section | None:
    rows = all_rows(
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


def strategies(spark: SparkSession) -> Section | None:
    rows = all_rows(
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


def leader_gaps(spark: SparkSession) -> Section | None:
    rows = all_rows(
        spark,
        f"""SELECT namespace, group_id, count(*) AS n, max(gap_ms) AS longest, sum(gap_ms) AS total
            FROM r_leader_tenures WHERE gap_ms > 0 GROUP BY 1, 2 ORDER BY longest DESC LIMIT {_TOP}""",
    )
    return _unless_empty(
        "leaders",
        "Time without a leader",
        "From the moment when the coordinator let the old leader go to the next one's first generation.",
        ("group", "times", "longest", "altogether"),
        [(_group(r), r["n"], duration(r["longest"]), duration(r["total"])) for r in rows],
    )


def flapping(spark: SparkSession) -> Section | None:
    rows = all_rows(
        spark,
        f"""SELECT namespace, group_id, client_id, max(flapping) AS cycles, max_by(median_session_ms, flapping) AS p50,
                count(*) AS n, count_if(end = 'expired') AS expired FROM r_members
            GROUP BY namespace, group_id, group_instance_id, client_id
            HAVING cycles >= {FLAPPING} ORDER BY cycles DESC, n DESC, client_id LIMIT {_TOP}""",
    )
    return _unless_empty(
        "flapping",
        "Members that come and go",
        f"{FLAPPING} joins or more within an hour that did not last. An autoscaler that changes its mind and a crash "
        "loop look like this.",
        ("group", "client", "most in an hour", "half of them lasted at most", "stays", "ended by expiry"),
        [(_group(r), r["client_id"], r["cycles"], duration(r["p50"]), r["n"], r["expired"]) for r in rows],
    )


def timeouts(rows: Sequence[dict[str, Any]]) -> Section | None:
    return _unless_empty(
        "timeouts",
        "Session timeouts that could change",
        "From how regularly heartbeats came. False expiries are per member and day, at today's timeout.",
        ("group", "today", "recommended", "longest gap", "false expiries", "a death is noticed"),
        [
            (
                _group(r),
                duration(r["session_timeout_ms"]),
                duration(r["recommended_ms"]),
                duration(r["longest_gap_ms"]),
                rate(r["false_expiries_per_day"]),
                f"{duration(abs(r['detection_saved_ms']))} {'later' if r['detection_saved_ms'] < 0 else 'sooner'}",
            )
            for r in rows[:_TOP]
        ],
    )


def stalls(spark: SparkSession) -> Section | None:
    rows = all_rows(
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
        [(_group(r), f"{r['topic']}/{r['partition']}", duration(r["stall"]), r["written"], r["back"]) for r in rows],
    )


def fenced(spark: SparkSession) -> Section | None:
    rows = all_rows(
        spark,
        f"""SELECT namespace, group_id, operation, error, sum(times) AS n, max(after_ms) AS late FROM r_fenced
            GROUP BY 1, 2, 3, 4 ORDER BY n DESC LIMIT {_TOP}""",
    )
    return _unless_empty(
        "fenced",
        "Stale requests that were refused",
        "Requests in the name of members that had been replaced. Each would have been a second writer.",
        ("group", "operation", "error", "times", "latest after its end"),
        [(_group(r), r["operation"], r["error"], r["n"], duration(r["late"])) for r in rows],
    )


def unreadable(spark: SparkSession) -> Section | None:
    rows = all_rows(spark, f"SELECT * FROM r_unreadable ORDER BY shard_id, seq LIMIT {_TOP}")
    return _unless_empty(
        "unreadable",
        "Lines that could not be read",
        "They were set aside: the other tables lack what they say. `rota pipeline audit` checks the lines around them.",
        ("shard", "line", "group", "kind", "error"),
        [(r["shard_id"], r["seq"], _group(r), r["kind"], r["error"]) for r in rows],
    )


def failovers(spark: SparkSession) -> Section | None:
    rows = all_rows(
        spark,
        f"""SELECT to_replica, count(*) AS n, count_if(graceful) AS graceful, max(gap_ms) AS gap FROM r_failovers
            WHERE from_replica <> '' GROUP BY 1 ORDER BY n DESC LIMIT {_TOP}""",
    )
    return _unless_empty(
        "failovers",
        "Shards that changed hands",
        "Handed over in order, or taken after a lease had run out.",
        ("to replica", "shards", "handed over in order", "longest gap of those"),
        [(r["to_replica"], r["n"], r["graceful"], duration(r["gap"])) for r in rows],
    )


QUESTIONS: tuple[tuple[str, Callable[[SparkSession], Section | None]], ...] = (
    ("rebalances", storms),
    ("rebalances", durations),
    ("assignments", churn),
    ("advisor", strategies),
    ("leader_tenures", leader_gaps),
    ("members", flapping),
    ("offsets", stalls),
    ("fenced", fenced),
    ("unreadable", unreadable),
)
"""Each with the table without rows of which there is no answer."""


def _unless_empty(
    name: str, title: str, sentence: str, columns: tuple[str, ...], rows: list[tuple[Any, ...]]
) -> Section | None:
    return Section(name, title, sentence, columns, rows) if rows else None


def _group(row: dict[str, Any]) -> Link:
    return group_link(row["namespace"], row["group_id"])


def _three(values: list[int] | None) -> str:
    """Their unit is said once where they have the same."""
    said = list(map(duration, values or ()))
    units = {each.partition(" ")[2] for each in said}
    shared = f" {units.pop()}" if len(units) == 1 else ""
    return " / ".join(each.removesuffix(shared) for each in said) + shared or "-"
