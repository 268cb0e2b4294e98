"""The rebalances that took longest, each with its cause, its member, its reason and the partitions that it stalled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rota.pipeline.lake import Snapshot, all_rows
from rota.pipeline.pages import Section, duration, group_link
from rota.pipeline.period import Period, moment, ms_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = ("began (UTC)", "group", "took", "cause", "member", "partitions stalled", "members", "outcome", "reason")
LONG_MS = 1_000
"""A shorter rebalance is not among the worst, however few there are."""
OF_EACH_GROUP = 5
"""So many of each group are listed."""
_NAMED = 3
_MOST_COMMITS = 200_000
"""Of commits around these rebalances: a fleet that commits more often is looked at in part."""

Incident = dict[str, Any]

AROUND_MS = 120_000
"""Commits of so long before and after a rebalance show how often its partitions are committed otherwise."""
_TIMES = 2.0
"""A pause is the rebalance's if it is so many times as long as usual."""

Commits = Mapping[tuple[str, int], Sequence[int]]
"""The moments of the commits of each partition, by topic and number, in their order."""


@dataclass(frozen=True, slots=True)
class Stalls:
    """The partitions that stood still in one rebalance."""

    partitions: int
    known: int
    """Number of partitions that had commits before it."""
    longest_ms: int = 0
    longest: str = ""
    goes_on: bool = False
    """Whether the longest pause was not over when the lines ended."""


def longest(spark: SparkSession, of: Period, most: int) -> tuple[list[Incident], list[Incident]]:
    """The longest rebalances, also those under way: of all groups those of a second or more, and some of each group."""
    found = all_rows(
        spark,
        f"""WITH timed AS (
                SELECT namespace, group_id, cause, reason, by, outcome, members_before, members_after,
                    unix_millis(started_at) AS began_ms,
                    coalesce(duration_ms, greatest({ms_of(of.end)} - unix_millis(started_at), 0)) AS took_ms
                FROM r_rebalances WHERE outcome <> 'reassigned'),
            ranked AS (SELECT *, row_number() OVER (ORDER BY took_ms DESC, began_ms, group_id) AS place,
                row_number() OVER (PARTITION BY namespace, group_id ORDER BY took_ms DESC, began_ms) AS place_in_group
                FROM timed),
            worst AS (SELECT * FROM ranked WHERE place <= {most} OR place_in_group <= {OF_EACH_GROUP}),
            expired AS (SELECT namespace, group_id, member_id, unix_millis(ended_at) AS at_ms
                FROM r_members WHERE end = 'expired')
            SELECT w.*, array_sort(collect_list(e.member_id)) AS lost FROM worst AS w LEFT JOIN expired AS e
                ON e.namespace = w.namespace AND e.group_id = w.group_id
                AND e.at_ms BETWEEN w.began_ms + 1 AND w.began_ms + w.took_ms
            GROUP BY ALL ORDER BY took_ms DESC, began_ms, group_id""",
    )
    worst = [one for one in found if one["place"] <= most and one["took_ms"] >= LONG_MS]
    return worst, [one for one in found if one["place_in_group"] <= OF_EACH_GROUP]


def worst_rebalances(tables: Snapshot, of: Period, incidents: Sequence[Incident]) -> Section:
    """One line a rebalance, the longest first."""
    if not incidents:
        nothing = f"No rebalance took {duration(LONG_MS)} or more."
        return Section("worst-rebalances", "Worst rebalances", nothing, COLUMNS, ())
    commits = _commits(tables, incidents)
    last_ms = ms_of(of.end)
    rows = []
    for incident, around in zip(incidents, commits, strict=True):
        ended_ms = incident["began_ms"] + incident["took_ms"]
        rows.append(_cells(incident, stalls(around, incident["began_ms"], ended_ms, last_ms)))
    return Section(
        "worst-rebalances",
        "Worst rebalances",
        "The longest first. A partition was stalled if the time between two of its commits was more than twice as long "
        "as usual; it stands still until its next commit.",
        COLUMNS,
        rows,
    )


def _cells(incident: Incident, found: Stalls | None) -> tuple[Any, ...]:
    before, after = incident["members_before"], incident["members_after"]
    members = f"{before}" if after is None else f"{before} → {after}"
    return (
        f"{moment(incident['began_ms']):%m-%d %H:%M:%S}",
        group_link(incident["namespace"], incident["group_id"]),
        duration(incident["took_ms"]),
        incident["cause"],
        incident["by"] or "-",
        stalls_in_words(found),
        members,
        incident["outcome"] or "under way",
        reason_of(incident),
    )


def reason_of(incident: Incident) -> str:
    """The coordinator's sentence, and the members that the rebalance waited for until they expired."""
    lost = incident["lost"]
    named = ", ".join(lost[:_NAMED]) + (f" and {len(lost) - _NAMED} others" if len(lost) > _NAMED else "")
    return f"{incident['reason']}; meanwhile expired: {named}" if lost else str(incident["reason"])


def stalls_in_words(found: Stalls | None) -> str:
    """`3 of 8, longest 62 s: orders/1`."""
    if found is None:
        return "not known"
    if not found.partitions:
        return f"none of {found.known}"
    more = ", not over" if found.goes_on else ""
    return f"{found.partitions} of {found.known}, longest {duration(found.longest_ms)}: {found.longest}{more}"


def _commits(tables: Snapshot, incidents: Sequence[Incident]) -> list[Commits]:
    """The commits around each of these rebalances, as far as the lines are still there."""
    from pyspark.sql import functions as F

    events = tables.events()
    wanted = F.lit(False)
    for each in incidents:
        begin_ms, end_ms = _around(each)
        at = F.col("at").between(F.timestamp_millis(F.lit(begin_ms)), F.timestamp_millis(F.lit(end_ms)))
        of_group = (F.col("namespace") == each["namespace"]) & (F.col("group_id") == each["group_id"])
        wanted = wanted | (at & of_group)
    lines = (
        events.where((F.col("kind") == "offsets_committed") & wanted)
        .select("namespace", "group_id", F.unix_millis("at").alias("at_ms"), F.explode("offsets").alias("offset"))
        .select("namespace", "group_id", "at_ms", "offset.topic", "offset.partition")
        .orderBy("at_ms")
        .limit(_MOST_COMMITS)
        .collect()
    )
    return [in_order(_partitions(lines, each)) for each in incidents]


def _partitions(lines: Sequence[Any], incident: Incident) -> list[tuple[str, int, int]]:
    begin_ms, end_ms = _around(incident)
    group = incident["namespace"], incident["group_id"]
    return [
        (line.topic, line.partition, line.at_ms)
        for line in lines
        if (line.namespace, line.group_id) == group and begin_ms <= line.at_ms <= end_ms
    ]


def _around(incident: Incident) -> tuple[int, int]:
    return incident["began_ms"] - AROUND_MS, incident["began_ms"] + incident["took_ms"] + AROUND_MS


# --- the partitions that a rebalance stalled ----------------------------------------------------------------


def stalls(commits: Commits, began_ms: int, ended_ms: int, last_ms: int) -> Stalls | None:
    """The stalls of a rebalance; None where no commit before it is known. `last_ms`: the end of the lines."""
    known = {partition: moments for partition, moments in commits.items() if moments and moments[0] <= began_ms}
    if not known:
        return None
    found = []
    for (topic, number), moments in known.items():
        pause = _pause(moments, began_ms, ended_ms, last_ms)
        if pause is not None:
            found.append((*pause, f"{topic}/{number}"))
    if not found:
        return Stalls(0, len(known))
    longest_ms, goes_on, name = max(found, key=lambda one: (one[0], one[2]))
    return Stalls(len(found), len(known), longest_ms, name, goes_on)


def _pause(moments: Sequence[int], began_ms: int, ended_ms: int, last_ms: int) -> tuple[int, bool] | None:
    """The longest time between two commits that overlaps the rebalance, if it is longer than usual."""
    goes_on = moments[-1] < ended_ms
    times = list(pairwise([*moments, last_ms] if goes_on else moments))
    within = [(after - before, after) for before, after in times if before < ended_ms and after > began_ms]
    usual = [after - before for before, after in times if after <= began_ms or before >= ended_ms]
    if not within:
        return None
    pause_ms, until_ms = max(within)
    if usual and pause_ms <= _TIMES * max(sorted(usual)[len(usual) // 2], 1):
        return None
    return pause_ms, goes_on and until_ms == last_ms


def in_order(found: Iterable[tuple[str, int, int]]) -> Commits:
    """Commits as `stalls` wants them, of topics, partition numbers and moments."""
    commits: dict[tuple[str, int], list[int]] = {}
    for topic, partition, at_ms in sorted(found):
        commits.setdefault((topic, partition), []).append(at_ms)
    return commits
