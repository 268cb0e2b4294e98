"""The report of a journal with one group of each kind of trouble, on a real Spark."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rota.pipeline.failures import NothingFound
from rota.pipeline.report import make_report
from rota.pipeline.tables import Line
from tests.pipeline.journals import UNTIL_MS
from tests.pipeline.lakes import Fed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
T0 = UNTIL_MS - UNTIL_MS % HOUR + 20 * MINUTE
FAR_AHEAD = 50 * 365 * 24 * HOUR


class Written:
    """Lines of one shard, written by hand: the report must be right about what they say, not about how they came."""

    def __init__(self) -> None:
        self.lines: list[Line] = []

    def line(self, at_ms: int, group: str, generation: int, kind: str, reason: str = "", **payload: Any) -> None:
        seq = len(self.lines) + 1
        self.lines.append(Line(0, seq, at_ms, 1, "default", group, generation, kind, reason, json.dumps(payload)))

    def member(self, at_ms: int, group: str, generation: int, member: str) -> None:
        image = {
            "member_id": member,
            "group_instance_id": None,
            "client_id": "app",
            "host": "10.0.0.7",
            "session_timeout_ms": 10 * SECOND,
            "rebalance_timeout_ms": MINUTE,
            "protocols": [["range", ""]],
        }
        self.line(at_ms, group, generation, "member_joined", member=image, protocol_type="worker")

    def joins(self, at_ms: int, group: str, generation: int, member: str, from_state: str) -> None:
        self.member(at_ms, group, generation, member)
        began: dict[str, Any] = {"by": member, "from_state": from_state, "cause": "member_joined"}
        self.line(at_ms, group, generation, "rebalance_started", f"member {member} joined", **began)

    def agrees(self, began_ms: int, at_ms: int, group: str, generation: int, *members: str) -> None:
        done: dict[str, Any] = {
            "protocol_type": "worker",
            "protocol_name": "range",
            "leader_id": members[0],
            "member_ids": members,
        }
        by: dict[str, Any] = {
            "generation_id": generation,
            "started_at_ms": began_ms,
            "by": members[-1],
            "cause": "member_joined",
        }
        self.line(at_ms, group, generation, "generation_completed", f"member {members[-1]} joined", **done, **by)
        given: dict[str, Any] = {
            "leader_id": members[0],
            "assignments": [],
            "resync": False,
            "generation_id": generation,
        }
        self.line(at_ms, group, generation, "assignment_synced", **given)

    def expires(self, at_ms: int, group: str, generation: int, member: str, reason: str) -> None:
        gone = {"member_id": member, "group_instance_id": None, "cause": "member_expired"}
        self.line(at_ms, group, generation, "member_expired", reason, **gone)

    def commits(self, from_ms: int, until_ms: int, group: str, generation: int, *partitions: int) -> None:
        for at_ms in range(from_ms, until_ms, 5 * SECOND):
            offsets = [["orders", partition, at_ms - from_ms, None, ""] for partition in partitions]
            self.line(at_ms, group, generation, "offsets_committed", member_id="a", offsets=offsets)


def a_bad_day() -> list[Line]:
    """Six groups over two hours: `gone` is deleted once it is empty, `clock` has a clock that is far ahead."""
    w, end = Written(), T0 + 2 * HOUR
    for group in ("stuck", "lost", "gone", "still", "slow", "clock"):
        w.joins(T0, group, 0, "a", "Empty")
        members = ["a"]
        if group == "slow":
            w.member(T0, group, 0, "b")
            members.append("b")
        w.agrees(T0, T0 + 300, group, 1, *members)
    w.commits(T0 + SECOND, T0 + 10 * MINUTE, "slow", 1, 0, 1)
    # It takes 61 s, because b does not come back; partition 1 is committed all the while.
    began = T0 + 10 * MINUTE
    w.joins(began, "slow", 1, "c", "Stable")
    w.expires(began + 61 * SECOND, "slow", 1, "b", "did not rejoin within the rebalance timeout")
    w.agrees(began, began + 61 * SECOND, "slow", 2, "a", "c")
    w.commits(began + 62 * SECOND, end, "slow", 2, 0)
    w.commits(began, end + 1, "slow", 2, 1)
    fenced = {"group_instance_id": None, "operation": "commit", "error": "ILLEGAL_GENERATION"}
    for late in range(12):
        stale: dict[str, Any] = {"member_id": f"z{late}", "request_generation_id": 1, **fenced}
        w.line(T0 + 12 * MINUTE, "slow", 2, "request_fenced", **stale)
    w.commits(T0 + SECOND, T0 + 5 * MINUTE, "still", 1, 0, 1, 2)
    w.joins(T0 + HOUR, "stuck", 1, "b", "Stable")
    w.expires(T0 + HOUR, "lost", 1, "a", "no heartbeat within its session timeout of 10000 ms")
    emptied = {"generation_id": 2, "cause": "member_expired", "by": "a"}
    w.line(T0 + HOUR, "lost", 2, "group_emptied", "member a expired: no heartbeat", **emptied)
    w.expires(T0 + HOUR + MINUTE, "gone", 1, "a", "no heartbeat within its session timeout of 10000 ms")
    w.line(T0 + HOUR + MINUTE, "gone", 2, "group_emptied", "member a expired: no heartbeat", **emptied)
    w.line(T0 + HOUR + 2 * MINUTE, "gone", 2, "group_deleted", "nothing is left in it", generation_id=2)
    w.joins(T0 + FAR_AHEAD, "clock", 1, "b", "Stable")
    w.agrees(T0 + FAR_AHEAD, T0 + FAR_AHEAD + 300, "clock", 2, "a", "b")
    return w.lines


def table(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_the_report_finds_each_trouble_of_a_bad_day(spark: SparkSession, tmp_path: Path) -> None:
    fed = Fed(spark, tmp_path, a_bad_day(), decoder="")
    fed.append(len(a_bad_day()))
    fed.read()

    page = make_report(fed.lake)
    page.write(tmp_path / "all")
    make_report(fed.lake, groups=[("default", "slow")]).write(tmp_path / "slow")

    assert page.headline["stale requests refused"] == "12"
    assert page.headline["left out: a clock was ahead"] == "1 rebalances"
    assert page.headline["groups that rebalanced"] == "6"
    assert [section.name for section in page.sections[:2]] == ["right-now", "worst-rebalances"]
    now = {(row["group"], row["what"].partition(" (")[0]): row["for"] for row in table(tmp_path / "all", "right-now")}
    assert now == {
        ("default/stuck", "rebalancing"): "1 h",
        ("default/lost", "no members: the last one was lost"): "1 h",
        ("default/gone", "no members: the last one was lost"): "59 min",
        ("default/still", "3 of 3 partitions without a commit"): "1.9 h",
    }
    stuck, slow = table(tmp_path / "all", "worst-rebalances")
    assert (stuck["group"], stuck["took"], stuck["outcome"]) == ("default/stuck", "1 h", "under way")
    assert (slow["group"], slow["took"], slow["cause"], slow["member"]) == (
        "default/slow",
        "1 min",
        "member_joined",
        "c",
    )
    assert slow["partitions stalled"] == "1 of 2, longest 1.1 min: orders/0"
    assert slow["reason"] == "member c joined; meanwhile expired: b"
    assert {row["group"] for row in table(tmp_path / "slow", "groups")} == {"default/slow"}
    assert table(tmp_path / "slow", "right-now") == []
    with pytest.raises(NothingFound, match="no group default/none"):
        make_report(fed.lake, groups=[("default", "none")])
