"""Troubles at the journal's end: groups that are stuck, have lost their members or leader, or make no progress."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rota.pipeline.facts.view import COMPLETING, DEAD, EMPTY, PREPARING
from rota.pipeline.lake import all_rows, literal
from rota.pipeline.pages import Section, duration, group_link
from rota.pipeline.period import Period, moment, ms_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STUCK_MS = 60_000
"""A rebalance, or a group without a leader, is worth a line after so long."""
STILL_MS = 600_000
"""So is a partition without a commit."""
STILL_TIMES = 10
"""A partition stands still once so many of its usual times between two commits are over."""
LOST_MS = 86_400_000
"""A deleted group that lost its last member is shown for so long: the service deletes groups that keep nothing."""
UNUSUAL_MS = 3_600_000
"""The usual time of a partition of which one commit is known."""

_MOST = 30
"""So many troubles are listed."""

GroupName = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Progress:
    """One partition, by its last hour with commits."""

    topic: str
    partition: int
    first_ms: int
    last_ms: int
    commits: int

    @property
    def usual_ms(self) -> float:
        """From one commit to the next."""
        return (self.last_ms - self.first_ms) / (self.commits - 1) if self.commits > 1 else UNUSUAL_MS


@dataclass(frozen=True, slots=True)
class Standing:
    """A group at the journal's end."""

    state: str
    since_ms: int
    lost: bool = False
    """Whether the last member of an Empty or deleted group expired: it did not leave, so the group is not at rest."""
    reason: str = ""
    """Of the rebalance under way, or how the last member was lost."""
    leader_id: str = ""
    leader_gone_ms: int | None = None
    """When the last leader went; None where there was none."""
    rebalance_timeout_ms: int | None = None
    """The longest of its members'."""
    partitions: tuple[Progress, ...] = ()
    """Those that may stand still; `partition_count` counts the others, too."""
    partition_count: int = 0


@dataclass(frozen=True, slots=True)
class Trouble:
    """One trouble of a group: since when, for how long, and the reason, where one is known."""

    group: GroupName
    what: str
    since_ms: int
    for_ms: int
    why: str


def troubles(groups: Mapping[GroupName, Standing], end_ms: int) -> list[Trouble]:
    """All of them, those of groups that cannot work at all first, each kind by how long it has lasted."""
    kinds: tuple[list[Trouble], ...] = ([], [], [])
    for group, standing in groups.items():
        for place, found in enumerate((_stuck, _without_members, _still)):
            kinds[place].extend(found(group, standing, end_ms))
    ranked = (sorted(kind, key=lambda one: (-one.for_ms, one.group)) for kind in kinds)
    return [one for kind in ranked for one in kind]


def _stuck(group: GroupName, standing: Standing, end_ms: int) -> Iterator[Trouble]:
    for_ms = end_ms - standing.since_ms
    if standing.state in (PREPARING, COMPLETING) and for_ms >= STUCK_MS:
        phase = "members join" if standing.state == PREPARING else "the assignment is awaited"
        timeout_ms = standing.rebalance_timeout_ms
        late = timeout_ms is not None and for_ms > timeout_ms
        overdue = ", longer than the rebalance timeout: check that its shard has an owner" if late else ""
        leader = "" if standing.leader_id or standing.leader_gone_ms is None else "; no member leads"
        yield Trouble(group, f"rebalancing ({phase}{overdue}){leader}", standing.since_ms, for_ms, standing.reason)
    elif not standing.leader_id and standing.leader_gone_ms is not None and standing.state not in (EMPTY, DEAD):
        gone_ms = standing.leader_gone_ms
        if end_ms - gone_ms >= STUCK_MS:
            yield Trouble(group, "no member leads", gone_ms, end_ms - gone_ms, standing.reason)


def _without_members(group: GroupName, standing: Standing, end_ms: int) -> Iterator[Trouble]:
    """A group is at rest after its members left, and is not after its last member was lost."""
    for_ms = end_ms - standing.since_ms
    shown = standing.state == EMPTY or (standing.state == DEAD and for_ms <= LOST_MS)
    if shown and standing.lost and for_ms >= 0:
        yield Trouble(group, "no members: the last one was lost", standing.since_ms, for_ms, standing.reason)


def _still(group: GroupName, standing: Standing, end_ms: int) -> Iterator[Trouble]:
    if standing.state in (EMPTY, DEAD):
        return
    still = sorted(stalled(standing.partitions, end_ms), key=lambda one: one.last_ms)
    if still:
        number, total = len(still), max(standing.partition_count, len(still))
        named = ", ".join(f"{one.topic}/{one.partition}" for one in still[:3])
        more = f" and {number - 3} others" if number > 3 else ""
        what = f"{number} of {total} partitions without a commit"
        since_ms = still[0].last_ms
        yield Trouble(group, what, since_ms, end_ms - since_ms, f"last commits, the oldest first: {named}{more}")


def stalled(partitions: Iterable[Progress], end_ms: int) -> Iterator[Progress]:
    """Those without a commit for much longer than usual."""
    for one in partitions:
        if end_ms - one.last_ms > max(STILL_MS, STILL_TIMES * one.usual_ms):
            yield one


# --- the section of the report, from the rows that have no end yet -----------------------------------------


def right_now(spark: SparkSession, of: Period) -> tuple[Section, list[Trouble]]:
    """The troubles at the end of the period. Without any, the section says so."""
    end_ms = ms_of(of.end)
    found = troubles(standings(spark, of), end_ms)
    left_out = f" {len(found) - _MOST} more are left out." if len(found) > _MOST else ""
    sentence = (
        f"Judged at the last line, {of.end:%Y-%m-%d %H:%M:%S} UTC. Begin with the first line.{left_out}"
        if found
        else f"At the last line, {of.end:%Y-%m-%d %H:%M:%S} UTC, no group was stuck, each had a leader, and partitions "
        "made progress."
    )
    rows = [
        (group_link(*one.group), one.what, f"{moment(one.since_ms):%m-%d %H:%M:%S}", duration(one.for_ms), one.why)
        for one in found[:_MOST]
    ]
    return Section("right-now", "Right now", sentence, ("group", "what", "since (UTC)", "for", "why"), rows), found


def standings(spark: SparkSession, of: Period) -> dict[GroupName, Standing]:
    """Each group by its open rows, and by how its last member and its last leader went."""
    until = f"<= {literal(of.latest)}"
    ended = all_rows(
        spark,
        f"""SELECT namespace, group_id, unix_millis(max(to_at) FILTER (WHERE fact = 'leader_tenures')) AS gone_ms,
                max_by(struct(end, end_reason AS reason, member_id, unix_millis(ended_at) AS ended_ms), ended_at)
                    FILTER (WHERE fact = 'members') AS last
            FROM facts WHERE fact = 'leader_tenures' AND to_at {until} OR fact = 'members' AND ended_at {until}
            GROUP BY ALL""",
    )
    by_group = {(row["namespace"], row["group_id"]): row for row in ended}
    groups = all_rows(
        spark,
        f"""SELECT namespace, group_id, standing.state, unix_millis(standing.from_at) AS since_ms,
                coalesce(get(open.rebalances, 0).reason, '') AS reason,
                coalesce(get(open.leader_tenures, 0).leader_id, '') AS leader_id,
                array_max(transform(open.members, m -> m.rebalance_timeout_ms)) AS timeout_ms,
                size(open.offsets) AS partitions,
                transform(filter(open.offsets, o -> unix_millis(o.last_at) < {ms_of(of.end) - STILL_MS}), o -> struct(
                    o.topic, o.partition, unix_millis(o.first_at) AS first_ms, unix_millis(o.last_at) AS last_ms,
                    o.commits)) AS slow
            FROM (SELECT *, get(open.group_states, 0) AS standing FROM current) WHERE standing.from_at {until}""",
    )
    found: dict[GroupName, Standing] = {}
    for row in groups:
        group = row["namespace"], row["group_id"]
        of_group = by_group.get(group, {"gone_ms": None, "last": None})
        last: dict[str, Any] = (of_group["last"] if row["state"] in (EMPTY, DEAD) else None) or {}
        expired = last.get("end") == "expired"
        found[group] = Standing(
            state=row["state"],
            # A group is deleted some time after it has lost its last member.
            since_ms=last["ended_ms"] if expired and row["state"] == DEAD else row["since_ms"],
            lost=expired,
            reason=f"member {last['member_id']} expired: {last['reason']}" if expired else row["reason"],
            leader_id=row["leader_id"],
            leader_gone_ms=of_group["gone_ms"],
            rebalance_timeout_ms=row["timeout_ms"],
            partitions=tuple(Progress(**partition) for partition in row["slow"]),
            partition_count=row["partitions"],
        )
    return found
