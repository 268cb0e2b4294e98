"""Single groups in a report: advice for each, and a section for each that another section names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rota.pipeline.incidents import longest, reason_of
from rota.pipeline.lake import LATEST, all_rows
from rota.pipeline.pages import Section, duration, group_link
from rota.pipeline.period import Period, moment
from rota.pipeline.what_ifs import NO_CHANGE, STATIC, STRATEGY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MOST_ADVICE = 15
_REBALANCES = 5
"""So many of each group are listed."""
_WORTH_MS = 10_000
"""A change is advised if it saves so much of the time for which units stand still: units times milliseconds."""

GroupName = tuple[str, str]


class Advice(NamedTuple):
    """A change of one group, and its effect if it had been made at the beginning."""

    group: GroupName
    change: str
    effect: str


def advice(spark: SparkSession) -> list[Advice]:
    """Session timeouts first, those with the most false expiries before others; then strategies and static members."""
    return [*_timeouts(spark), *_what_ifs(spark)]


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


def _timeouts(spark: SparkSession) -> list[Advice]:
    rows = all_rows(
        spark,
        f"""SELECT * FROM ({LATEST.format(view="r_timeout_advice")})
            WHERE abs(detection_saved_ms) > session_timeout_ms * 0.2 AND detection_saved_ms <> 0
            ORDER BY false_expiries_per_day DESC, detection_saved_ms DESC, namespace, group_id LIMIT {_MOST_ADVICE}""",
    )
    return [Advice(_name(row), _timeout(row), _of_timeout(row)) for row in rows]


def _timeout(row: dict[str, Any]) -> str:
    return f"session timeout {duration(row['session_timeout_ms'])} → {duration(row['recommended_ms'])}"


def _of_timeout(row: dict[str, Any]) -> str:
    saved_ms = row["detection_saved_ms"]
    noticed = f"a death is noticed {duration(abs(saved_ms))} {'later' if saved_ms < 0 else 'sooner'}"
    false = f"false expiries a member and day: {_rate(row['false_expiries_per_day'])}"
    return f"{false} → {_rate(row['recommended_false_per_day'])}; {noticed}"


def _rate(value: float) -> str:
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
            _name(row),
            f"strategy {row['value']}" if row["change"] == STRATEGY else "a group_instance_id for each member",
            f"units stand still {_share(row)} less; rebalances {row['rebalances']:,} → {row['to_rebalances']:,}; "
            f"moves {row['moves']:,} → {row['to_moves']:,}",
        )
        for row in rows
    ]


def _share(row: dict[str, Any]) -> str:
    return f"{100 * (row['still_ms'] - row['to_still_ms']) / row['still_ms']:.0f} %"


def one_by_one(spark: SparkSession, of: Period, groups: Sequence[GroupName], found: Sequence[Advice]) -> list[Section]:
    """A section for each of these groups, below one of their own."""
    if not groups:
        return []
    sums = {
        _name(row): row
        for row in all_rows(
            spark,
            """SELECT namespace, group_id, count(*) AS n, sum(duration_ms) AS took, max(members_after) AS members
               FROM r_rebalances WHERE outcome <> 'reassigned' GROUP BY ALL""",
        )
    }
    states = {_name(row): row["state"] for row in all_rows(spark, "SELECT * FROM o_group_states")}
    causes = causes_of_groups(spark)
    rebalances: dict[GroupName, list[dict[str, Any]]] = {}
    for row in longest(spark, of, 0, each_group=_REBALANCES):
        rebalances.setdefault(_name(row), []).append(row)
    head = Section(
        "group-details",
        "Groups, one by one",
        f"Those that the sections above name; of each the {_REBALANCES} longest rebalances.",
        (),
        (),
    )
    each = []
    for group in groups:
        sentences = [_summary(sums.get(group), causes.get(group, ""), states.get(group, ""))]
        sentences += [f"Advice: {one.change} ({one.effect})." for one in found if one.group == group]
        rows = [_rebalance(row) for row in rebalances.get(group, ())]
        link = group_link(*group)
        each.append(Section(link.anchor, link.text, " ".join(sentences), _COLUMNS, rows, of="group-details"))
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


def causes_of_groups(spark: SparkSession) -> dict[GroupName, str]:
    """The causes of each group's rebalances with their numbers; joins last, as most departures are followed by one."""
    rows = all_rows(
        spark,
        """SELECT namespace, group_id, cause, count(*) AS n FROM r_rebalances GROUP BY ALL
           ORDER BY cause = 'member_joined', n DESC, cause""",
    )
    by_group: dict[GroupName, list[str]] = {}
    for row in rows:
        by_group.setdefault(_name(row), []).append(f"{row['n']:,} × {row['cause']}")
    return {group: ", ".join(each) for group, each in by_group.items()}


def _summary(sums: dict[str, Any] | None, causes: str, state: str) -> str:
    now = f"Now {state}." if state else "Deleted."
    if sums is None:
        return f"{now} No rebalance in this time."
    number = f"{sums['n']:,} rebalance{'' if sums['n'] == 1 else 's'}"
    return f"{now} {number}, {duration(sums['took'] or 0)} in all: {causes}."


def _name(row: dict[str, Any]) -> GroupName:
    return row["namespace"], row["group_id"]
