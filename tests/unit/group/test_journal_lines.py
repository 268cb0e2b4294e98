"""Every record as a line of the journal and back: the form that the pipeline and users read."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from rota.core.group import records as r
from rota.core.group.records import RECORD_KINDS, decode_entry, encode_entry
from rota.core.group.rows import MemberImage
from rota.protocol.causes import Cause
from rota.protocol.messages import Protocol

IMAGE = MemberImage(
    "m", "i", "app", "10.0.0.7", 10_000, 30_000, (Protocol("range", b"\x00\xff"), Protocol("b")), "token:ci"
)
IMAGE_LINE = {
    "member_id": "m",
    "group_instance_id": "i",
    "client_id": "app",
    "host": "10.0.0.7",
    "session_timeout_ms": 10_000,
    "rebalance_timeout_ms": 30_000,
    "protocols": [["range", "AP8="], ["b", ""]],
    "subject": "token:ci",
}
LINES: dict[r.Record, dict[str, Any]] = {
    r.RebalanceStarted("a member joined", "m", "Stable", Cause.MEMBER_JOINED): {
        "by": "m",
        "from_state": "Stable",
        "cause": "member_joined",
    },
    r.MemberJoined(IMAGE, "worker", "new"): {"member": IMAGE_LINE, "protocol_type": "worker"},
    r.MemberUpdated(IMAGE, True, "other metadata"): {"member": IMAGE_LINE, "settle": True},
    r.MemberLeft("m", None, "done", Cause.MEMBER_LEFT): {
        "member_id": "m",
        "group_instance_id": None,
        "cause": "member_left",
    },
    r.MemberExpired("m", "i", "silent", Cause.MEMBER_EXPIRED): {
        "member_id": "m",
        "group_instance_id": "i",
        "cause": "member_expired",
    },
    r.MemberRemoved("m", "i", "full", Cause.GROUP_FULL): {
        "member_id": "m",
        "group_instance_id": "i",
        "cause": "group_full",
    },
    r.MemberFenced("m", "n", "i", "came back", 3): {
        "member_id": "m",
        "new_member_id": "n",
        "group_instance_id": "i",
        "takeover": 3,
    },
    r.GenerationCompleted(2, "worker", "range", "m", ("m", "n"), 7, "joined", "n", Cause.MEMBER_JOINED): {
        "generation_id": 2,
        "protocol_type": "worker",
        "protocol_name": "range",
        "leader_id": "m",
        "member_ids": ["m", "n"],
        "started_at_ms": 7,
        "by": "n",
        "cause": "member_joined",
    },
    r.LeaderChanged("m", "n", "it left", Cause.MEMBER_LEFT): {
        "former_leader_id": "m",
        "leader_id": "n",
        "cause": "member_left",
    },
    r.AssignmentSynced(2, "m", (("m", b"\x01"), ("n", b"")), False, ""): {
        "generation_id": 2,
        "leader_id": "m",
        "assignments": [["m", "AQ=="], ["n", ""]],
        "resync": False,
        "cause": "",
        "by": "",
    },
    r.AssignmentFailed(2, "m", "no topic"): {"generation_id": 2, "leader_id": "m"},
    r.OffsetsCommitted("m", (r.CommittedOffset("t", 0, 7, 3, "x"), r.CommittedOffset("t", 1, 2**53, None, "", 99))): {
        "member_id": "m",
        "offsets": [["t", 0, 7, 3, "x"], ["t", 1, "9007199254740992", None, "", 99]],
    },
    r.OffsetsDeleted((("t", 0), ("t", 1)), "expired"): {"partitions": [["t", 0], ["t", 1]]},
    r.RequestFenced("m", "i", "commit", "FENCED_INSTANCE_ID", 1): {
        "member_id": "m",
        "group_instance_id": "i",
        "operation": "commit",
        "error": "FENCED_INSTANCE_ID",
        "request_generation_id": 1,
    },
    r.SessionStats((("m", "app", 10_000, 5, 900, ((3, 1), (40, 2))),)): {
        "members": [["m", "app", 10_000, 5, 900, [[3, 1], [40, 2]]]]
    },
    r.GenerationRaised(9, 3, (("generation", 8, 3), ("t/0", 70, -1)), "the store went back"): {
        "generation_id": 9,
        "former_generation_id": 3,
        "lost": [["generation", 8, 3], ["t/0", 70, -1]],
    },
    r.GroupFrozen(1_700, "a deploy"): {"until_ms": 1_700},
    r.GroupUnfrozen("it is out"): {},
    r.LeaveGranted("m", 1_700, 2, "its node is drained"): {"member_id": "m", "until_ms": 1_700, "max_leaving": 2},
    r.QuarantineChanged(3, 1, 60_000, "an incident"): {"after_falls": 3, "max_units": 1, "release_after_ms": 60_000},
    r.UnitsSuspected((("t/0", 2, 1_700),), "m", "m fell with t/0"): {"suspects": [["t/0", 2, 1_700]], "member_id": "m"},
    r.UnitsQuarantined(("t/0",), 0, "3 holders in a row fell", Cause.MEMBER_EXPIRED): {
        "units": ["t/0"],
        "until_ms": 0,
        "cause": "member_expired",
    },
    r.UnitsReleased(("t/0",), "it is fixed"): {"units": ["t/0"]},
    r.GroupEmptied(3, "the last left", Cause.MEMBER_LEFT, "m"): {
        "generation_id": 3,
        "cause": "member_left",
        "by": "m",
    },
    r.GroupDeleted(3, "nothing was left in it"): {"generation_id": 3},
    r.TopicChanged("t", 3, (("owner", "a"),), "", 2): {
        "topic": "t",
        "partitions": 3,
        "attributes": [["owner", "a"]],
        "revision": 2,
    },
    r.Administered("PutTopic", "alice", "t", "ticket 7", "10.0.0.7"): {
        "operation": "PutTopic",
        "actor": "alice",
        "target": "t",
        "origin": "10.0.0.7",
    },
    r.ShardAcquired("r1", 4, "it was free"): {"replica_id": "r1", "epoch": 4},
    r.ShardReleased("r1", 4, "it moves"): {"replica_id": "r1", "epoch": 4},
}
"""A record of each kind, and its payload."""


def test_every_kind_has_a_row() -> None:
    assert {type(record) for record in LINES} == set(RECORD_KINDS.values())
    assert all(kind == record.kind for kind, record in RECORD_KINDS.items())


@pytest.mark.parametrize("record", LINES, ids=lambda record: record.kind)
def test_a_line_says_all_that_its_record_says(record: r.Record) -> None:
    line = encode_entry(r.Entry("default", "g", 5, 1_234, record))

    assert json.loads(json.dumps(line)) == {
        "at_ms": 1_234,
        "namespace": "default",
        "group_id": "g",
        "generation_id": 5,
        "kind": record.kind,
        "reason": getattr(record, "reason", ""),
        "payload": LINES[record],
    }


def test_a_member_without_a_caller_has_no_subject() -> None:
    joined = r.MemberJoined(replace(IMAGE, subject=""), "worker", "new")

    assert r.payload_of(joined)["member"] == {name: value for name, value in IMAGE_LINE.items() if name != "subject"}


@pytest.mark.parametrize("record", LINES, ids=lambda record: record.kind)
def test_a_line_is_read_back_as_its_record(record: r.Record) -> None:
    entry = r.Entry("default", "g", 5, 1_234, record)

    assert decode_entry(json.loads(json.dumps(encode_entry(entry)))) == entry


def test_a_kind_of_a_later_release_is_not_read() -> None:
    line = encode_entry(r.Entry("default", "g", 5, 1_234, r.GroupEmptied(3, "")))

    with pytest.raises(KeyError):
        decode_entry({**line, "kind": "member_promoted"})
