"""How each group stands at the journal's end, read from the rows that are still open, and the section about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rota.pipeline.facts.view import DEAD, EMPTY
from rota.pipeline.now import STILL_MS, GroupName, Progress, Standing, Trouble, troubles
from rota.pipeline.pages import Section, duration, group_link
from rota.pipeline.period import Period, moment, ms_of
from rota.pipeline.views import all_rows, literal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MOST = 30


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
    """Each group by its open rows."""
    until = f"<= {literal(of.latest)}"
    of_states = all_rows(
        spark,
        f"SELECT namespace, group_id, state, unix_millis(from_at) AS since_ms FROM o_group_states"
        f" WHERE from_at {until}",
    )
    reasons = _by_group(spark, "SELECT namespace, group_id, reason FROM o_rebalances WHERE ended_at IS NULL")
    lost = _by_group(
        spark,
        f"""SELECT m.namespace, m.group_id,
                max_by(struct(m.end AS end, m.end_reason AS reason, m.member_id AS member_id,
                    unix_millis(m.ended_at) AS ended_ms), m.ended_at) AS last
            FROM c_members AS m JOIN o_group_states AS s ON (m.namespace, m.group_id) = (s.namespace, s.group_id)
            WHERE s.state IN ('{EMPTY}', '{DEAD}') AND m.ended_at {until} GROUP BY ALL""",
    )
    leaders = _by_group(spark, "SELECT namespace, group_id, leader_id FROM o_leader_tenures")
    gone = _by_group(
        spark,
        f"""SELECT namespace, group_id, unix_millis(max(to_at)) AS gone_ms FROM c_leader_tenures
            WHERE to_at {until} GROUP BY ALL""",
    )
    timeouts = _by_group(
        spark, "SELECT namespace, group_id, max(rebalance_timeout_ms) AS timeout_ms FROM o_members GROUP BY ALL"
    )
    partitions = _partitions(spark, of)
    found: dict[GroupName, Standing] = {}
    for row in of_states:
        group = row["namespace"], row["group_id"]
        last = lost.get(group, {}).get("last")
        expired = last is not None and last["end"] == "expired"
        found[group] = Standing(
            state=row["state"],
            # A group is deleted some time after it has lost its last member.
            since_ms=last["ended_ms"] if last is not None and expired and row["state"] == DEAD else row["since_ms"],
            lost=expired,
            reason=f"member {last['member_id']} expired: {last['reason']}"
            if last is not None and expired
            else reasons.get(group, {}).get("reason", ""),
            leader_id=leaders.get(group, {}).get("leader_id", ""),
            leader_gone_ms=gone.get(group, {}).get("gone_ms"),
            rebalance_timeout_ms=timeouts.get(group, {}).get("timeout_ms"),
            partitions=tuple(partitions.get(group, {}).get("slow", ())),
            partition_count=partitions.get(group, {}).get("total", 0),
        )
    return found


def _partitions(spark: SparkSession, of: Period) -> dict[GroupName, dict[str, Any]]:
    """The partitions that may stand still, by their open hours, and how many there are in all."""
    rows = all_rows(
        spark,
        f"""SELECT namespace, group_id, topic, partition, commits, unix_millis(first_at) AS first_ms,
                unix_millis(last_at) AS last_ms, total
            FROM (SELECT *, count(*) OVER (PARTITION BY namespace, group_id) AS total FROM o_offsets)
            WHERE unix_millis(last_at) < {ms_of(of.end) - STILL_MS}""",
    )
    found: dict[GroupName, dict[str, Any]] = {}
    for row in rows:
        of_group = found.setdefault((row["namespace"], row["group_id"]), {"slow": [], "total": row["total"]})
        of_group["slow"].append(
            Progress(row["topic"], row["partition"], row["first_ms"], row["last_ms"], row["commits"])
        )
    return found


def _by_group(spark: SparkSession, query: str) -> dict[GroupName, dict[str, Any]]:
    return {(row["namespace"], row["group_id"]): row for row in all_rows(spark, query)}
