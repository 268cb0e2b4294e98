"""The journal in words: every kind of line has its own."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from rota.core.group.records import Record
from rota.server.observability.timeline import what_happened

LINES: list[tuple[str, dict[str, Any], str]] = [
    ("rebalance_started", {}, "rebalance"),
    ("member_joined", {"member": {"member_id": "a"}}, "a joins"),
    ("member_updated", {"member": {"member_id": "a"}}, "a joins again with other metadata"),
    ("member_left", {"member_id": "a"}, "a left"),
    ("member_expired", {"member_id": "a"}, "a expired"),
    ("member_removed", {"member_id": "a"}, "a removed"),
    (
        "member_fenced",
        {"member_id": "a", "new_member_id": "b", "group_instance_id": "i"},
        "a fenced, b is i now",
    ),
    (
        "generation_completed",
        {"member_ids": ["a", "b"], "leader_id": "a", "protocol_name": "range"},
        "2 members agree, a leads by 'range'",
    ),
    (
        "generation_completed",
        {"member_ids": ["a"], "leader_id": "a", "protocol_name": "range"},
        "1 member agrees, a leads by 'range'",
    ),
    ("leader_changed", {"former_leader_id": "a", "leader_id": "b"}, "the lead passes from a to b"),
    ("leader_changed", {"former_leader_id": "", "leader_id": "b"}, "b leads now"),
    ("assignment_synced", {"leader_id": "a", "resync": False}, "a has assigned"),
    ("assignment_synced", {"leader_id": "a", "resync": True}, "a assigns anew without a rebalance"),
    ("assignment_failed", {"leader_id": "a"}, "a could not assign"),
    ("offsets_committed", {"member_id": "a", "offsets": [["t", 0, 7, "", -1]]}, "a commits t/0 at 7"),
    ("offsets_committed", {"member_id": "", "offsets": [["t", 0, 7]]}, "an administrator commits t/0 at 7"),
    ("offsets_deleted", {"partitions": [["t", 0], ["t", 1]]}, "offsets deleted of t/0, t/1"),
    (
        "request_fenced",
        {"operation": "Heartbeat", "member_id": "a", "request_generation_id": 3, "error": "ILLEGAL_GENERATION"},
        "Heartbeat of a with generation 3 refused, ILLEGAL_GENERATION",
    ),
    (
        "generation_raised",
        {"generation_id": 9, "former_generation_id": 3, "lost": [["generation", 8, 3]]},
        "the generation is raised from 3 to 9",
    ),
    ("session_stats", {"members": [["a", "c", 10_000, 0, 3_000, []]]}, "statistics of heartbeats, members: 1"),
    ("group_frozen", {"until_ms": 1_700}, "the group is frozen until 1970-01-01 00:00:01 UTC"),
    (
        "quarantine_changed",
        {"after_falls": 3, "max_units": 1, "release_after_ms": 0},
        "units are quarantined after 3 falls in a row, at most 1 at once",
    ),
    (
        "units_suspected",
        {"suspects": [["t/0", 2, 1_700]], "member_id": "a"},
        "suspects, with their falls in a row: t/0 (2)",
    ),
    ("units_quarantined", {"units": ["t/0"], "until_ms": 0, "cause": ""}, "t/0 quarantined"),
    ("units_released", {"units": ["t/0", "t/1"]}, "t/0, t/1 released from quarantine"),
    ("group_unfrozen", {}, "the group is not frozen any more"),
    (
        "leave_granted",
        {"member_id": "a", "until_ms": 1_700, "max_leaving": 2},
        "a may leave, as one of at most 2 at once",
    ),
    ("group_emptied", {}, "the group is empty"),
    ("group_deleted", {}, "the group is deleted"),
    ("topic_changed", {"topic": "t", "partitions": 4}, "topic t has 4 partitions"),
    ("topic_changed", {"topic": "t", "partitions": 0}, "topic t is deleted"),
    ("administered", {"operation": "DeleteGroup", "actor": "ops"}, "DeleteGroup by ops"),
    ("shard_acquired", {"replica_id": "r1", "epoch": 3}, "r1 acquired the shard, epoch 3"),
    ("shard_released", {"replica_id": "r1", "epoch": 3}, "r1 released the shard, epoch 3"),
]


@pytest.mark.parametrize(("kind", "payload", "reported"), LINES)
def test_a_line_in_words(kind: str, payload: dict[str, Any], reported: str) -> None:
    assert what_happened({"kind": kind, "payload": payload, "reason": ""}) == reported
    assert what_happened({"kind": kind, "payload": payload, "reason": "because"}) == f"{reported}: because"


def test_every_kind_of_line_has_words() -> None:
    assert {kind for kind, _, _ in LINES} == {record.kind for record in get_args(Record)}


def test_the_line_of_a_later_release_is_named_as_it_is() -> None:
    assert what_happened({"kind": "group_painted", "payload": {}, "reason": ""}) == "group_painted"
