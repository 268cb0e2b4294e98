"""Single groups in a report: advice for each, and a section for each that another section names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rota.pipeline.incidents import OF_EACH_GROUP, Incident, reason_of
from rota.pipeline.lake import LATEST, all_rows
from rota.pipeline.pages import Section, duration, group_link
from rota.pipeline.period import Period, moment, ms_of
from rota.pipeline.what_ifs import NO_CHANGE, STATIC, STRATEGY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MOST_ADVICE = 15
_WORTH_MS = 10_000
"""A change is advised if it saves so much of the time for which units stand still: units times milliseconds."""

GroupName = tuple[str, str]


class Advice(NamedTuple):
    """A change of one group, and its effect if it had been made at the beginning."""

    group: GroupName
    change: str
    effect: str


class Rebalances(NamedTuple):
    """The rebalances of one group, added up: how many, the longest, and their causes with their numbers."""

    state: str
    number: int
    """With those without a join phase."""
    steps: int
    longest_ms: int
    took_ms: int
    causes: str


def rebalances(spark: SparkSession, of: Period) -> dict[GroupName, Rebalances]:
    """Each group's, the group with most first; joins are its last cause, as most departures are followed by one."""
    took = f"coalesce(duration_ms, greatest({ms_of(of.end)} - unix_millis(started_at), 0))"
    rows = all_rows(
        spark,
        f"""SELECT c.namespace, c.group_id, any_value(state) AS state, cause, count(cause) AS n,
                count_if(outcome <> 'reassigned') AS steps,
                coalesce(sum({took}) FILTER (WHERE outcome <> 'reassigned'), 0) AS took_ms,
                coalesce(max({took}), 0) AS longest_ms
            FROM current AS c LEFT JOIN r_rebalances AS r
                ON c.namespace = r.namespace AND c.group_id = r.group_id WHERE c.group_id <> '' GROUP BY ALL
            ORDER BY cause = 'member_joined', n DESC, cause""",
    )
    by_group: dict[GroupName, list[dict[str, Any]]] = {}
    for row in rows:
        by_group.setdefault((row["namespace"], row["group_id"]), []).append(row)
    found = {
        group: Rebalances(
            each[0]["state"],
            sum(row["n"] for row in each),
            sum(row["steps"] for row in each),
            max(row["longest_ms"] for row in each),
            sum(row["took_ms"] for row in each),
            ", ".join(f"{row['n']:,} × {row['cause']}" for row in each if row["n"]),
        )
        for group, each in by_group.items()
    }
    return dict(sorted(found.items(), key=lambda item: (-item[1].number, item[0])))


def latest_timeouts(spark: SparkSession) -> list[dict[str, Any]]:
    """Each group's last advice on its session timeout, if the change is worth it."""
    return all_rows(
        spark,
        f"""SELECT * FROM ({LATEST.format(view="r_timeout_advice")})
            WHERE abs(detection_saved_ms) > session_timeout_ms * 0.2 AND detection_saved_ms <> 0
            ORDER BY false_expiries_per_day DESC, detection_saved_ms DESC, namespace, group_id LIMIT {_MOST_ADVICE}""",
    )


def advice(spark: SparkSession, timeouts: Sequence[dict[str, Any]]) -> list[Advice]:
    """Session timeouts first, those with the most false expiries before others; then strategies and static members."""
    found = [Advice((row["namespace"], row["group_id"]), _timeout(row), _of_timeout(row)) for row in timeouts]
    return [*found, *_what_ifs(spark)]


def advice_section(found: Sequence[Advice]) -> Section | None:
    if not found:
        return None
    return Section(
        "advice",
        "Advice",
        "Computed from each group's own history, as if the change had been made at its beginning; `rota pipeline "
        "advise` shows all prices, and `rota groups plan` computes a change of today.",
        ("group", "change", "effect over this history"),
        [(group_link(*one.group), one.change, one.effect) for one in found],
    )


def _timeout(row: dict[str, Any]) -> str:
    return f"session timeout {duration(row['session_timeout_ms'])} → {duration(row['recommended_ms'])}"


def _of_timeout(row: dict[str, Any]) -> str:
    saved_ms = row["detection_saved_ms"]
    noticed = f"a death is noticed {duration(abs(saved_ms))} {'later' if saved_ms < 0 else 'sooner'}"
    false = f"false expiries a member and day: {rate(row['false_expiries_per_day'])}"
    return f"{false} → {rate(row['recommended_false_per_day'])}; {noticed}"


def rate(value: float) -> str:
    """A rate with two digits, or with all digits before the point: people do not read exponents."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}" if value >= 1e-4 or not value else "below 0.0001"


def _what_ifs(spark: SparkSession) -> list[Advice]:
    """Of each group the strategy, and static membership, where units would have stood still a fifth less."""
    rows = all_rows(
        spark,
        f"""WITH sums AS (SELECT *, paused_unit_ms + waiting_unit_ms AS still_ms FROM r_what_ifs),
            best AS (SELECT namespace, group_id, change, min_by(struct(*), struct(still_ms, moves, value)) AS b
                FROM sums WHERE change IN ('{STRATEGY}', '{STATIC}') GROUP BY ALL)
            SELECT s.namespace, s.group_id, s.rebalances, s.moves, s.still_ms, b.change, b.value,
                b.rebalances AS to_rebalances, b.moves AS to_moves, b.still_ms AS to_still_ms
            FROM sums AS s JOIN best USING (namespace, group_id)
            WHERE s.change = '{NO_CHANGE}' AND s.still_ms - b.still_ms >= greatest({_WORTH_MS}, s.still_ms / 5)
            ORDER BY s.still_ms - b.still_ms DESC, namespace, group_id, b.change LIMIT {_MOST_ADVICE}""",
    )
    return [
        Advice(
            (row["namespace"], row["group_id"]),
            f"strategy {row['value']}" if row["change"] == STRATEGY else "a group_instance_id for each member",
            f"units stand still {_share(row)} less; rebalances {row['rebalances']:,} → {row['to_rebalances']:,}; "
            f"moves {row['moves']:,} → {row['to_moves']:,}",
        )
        for row in rows
    ]


def _share(row: dict[str, Any]) -> str:
    return f"{100 * (row['still_ms'] - row['to_still_ms']) / row['still_ms']:.0f} %"


def one_by_one(
    all_groups: dict[GroupName, Rebalances],
    longest: Sequence[Incident],
    groups: Sequence[GroupName],
    found: Sequence[Advice],
) -> list[Section]:
    """A section for each of these groups, below one of their own."""
    if not groups:
        return []
    rows: dict[GroupName, list[tuple[Any, ...]]] = {}
    for row in longest:
        rows.setdefault((row["namespace"], row["group_id"]), []).append(_rebalance(row))
    head = Section(
        "group-details",
        "Groups, one by one",
        f"The groups that the sections above name, each with its {OF_EACH_GROUP} longest rebalances.",
        (),
        (),
    )
    each = []
    for group in groups:
        sentences = [_summary(all_groups.get(group))]
        sentences += [f"Advice: {one.change} ({one.effect})." for one in found if one.group == group]
        link = group_link(*group)
        each.append(
            Section(link.anchor, link.text, " ".join(sentences), _COLUMNS, rows.get(group, ()), of="group-details")
        )
    return [head, *each]


_COLUMNS = ("began (UTC)", "took", "cause", "member", "members", "outcome", "reason")


def _rebalance(row: dict[str, Any]) -> tuple[Any, ...]:
    before, after = row["members_before"], row["members_after"]
    return (
        f"{moment(row['began_ms']):%m-%d %H:%M:%S}",
        duration(row["took_ms"]),
        row["cause"],
        row["by"] or "-",
        f"{before}" if after is None else f"{before} → {after}",
        row["outcome"] or "under way",
        reason_of(row),
    )


def _summary(of_group: Rebalances | None) -> str:
    now = f"Now {of_group.state}." if of_group is not None else "Deleted."
    if of_group is None or not of_group.number:
        return f"{now} No rebalance in this time."
    number = f"{of_group.steps:,} rebalance{'' if of_group.steps == 1 else 's'}"
    return f"{now} {number}, {duration(of_group.took_ms)} in all: {of_group.causes}."
