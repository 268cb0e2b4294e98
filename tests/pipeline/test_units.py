"""Units of every protocol type, and advice by what each member really subscribes to."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from rota.core.assignors import MemberSubscription, TopicPartition, assign
from rota.core.assignors.work import WorkItem, WorkShare
from rota.core.types.consumer import (
    Assignment,
    Subscription,
    encode_assignment,
    encode_plain_assignment,
    encode_subscription,
)
from rota.core.types.leader import Election, encode_election
from rota.core.types.permits import PermitShare
from rota.core.types.permits import encode_share as encode_permit
from rota.core.types.worker import encode_share as encode_work
from rota.pipeline.advisor import ACTUAL
from rota.pipeline.facts.steps import Holders
from rota.pipeline.facts.units import LEADERSHIP, decode_shares, load_decoders
from rota.pipeline.failures import PipelineFailed
from rota.pipeline.tables import Line
from tests.pipeline.hand_made import as_dict
from tests.pipeline.replaying import replays

COUNTS = {"a": 6, "b": 6}


def text(data: bytes) -> str:
    return b64encode(data).decode()


def names(assignment: bytes) -> list[str]:
    return assignment.decode().split()


class Unequal:
    """A group that is led by Kafka's `range`, of members that read different topics. Its lines are written by hand."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._members: dict[str, tuple[str, ...]] = {}
        self._generation = 0

    def line(self, kind: str, **payload: Any) -> None:
        seq = len(self.lines) + 1
        written = json.dumps(payload)
        self.lines.append(Line(0, seq, seq * 1_000, 1, "default", "g", self._generation, kind, "", written))

    def joins(self, member_id: str, *topics: str) -> Unequal:
        self._members[member_id] = topics
        image = {
            "member_id": member_id,
            "group_instance_id": None,
            "client_id": member_id,
            "host": "10.0.0.1",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "protocols": [["range", text(encode_subscription(Subscription(topics)))]],
        }
        self.line("rebalance_started", by=member_id, from_state="Stable", cause="member_joined")
        self.line("member_joined", member=image, protocol_type="consumer")
        return self._agree()

    def leaves(self, member_id: str) -> Unequal:
        del self._members[member_id]
        self.line("rebalance_started", by=member_id, from_state="Stable", cause="member_left")
        self.line("member_left", member_id=member_id, group_instance_id=None, cause="member_left")
        return self._agree()

    def _agree(self) -> Unequal:
        self._generation += 1
        leader = next(iter(self._members))
        done = {"protocol_type": "consumer", "protocol_name": "range", "leader_id": leader}
        ids = {"generation_id": self._generation, "member_ids": list(self._members), "started_at_ms": 0, "by": ""}
        self.line("generation_completed", **done, **ids, cause="")
        shares = assign("range", COUNTS, [MemberSubscription(m, None, topics) for m, topics in self._members.items()])
        given = [[m, text(encode_assignment(Assignment(tuple(share))))] for m, share in shares.items()]
        synced = {"generation_id": self._generation, "leader_id": leader, "assignments": given}
        self.line("assignment_synced", **synced, resync=False, cause="", by="")
        return self

    def advice(self, strategy: str) -> list[tuple[int, int]]:
        """Moves and imbalance of each step."""
        rows = [as_dict(*row) for row in replays(self.lines, [strategy]) if row.table == "advisor"]
        return [(row["moves"], row["imbalance"]) for row in rows if row["assignor"] == strategy]

    def actual(self) -> list[tuple[int, int]]:
        rows = [as_dict(*row) for row in replays(self.lines, []) if row.table == "advisor"]
        return [(row["moves"], row["imbalance"]) for row in rows if row["assignor"] == ACTUAL]


def test_the_groups_own_strategy_replayed_is_what_really_happened() -> None:
    # A reads a, B reads both, C reads b. A has 6; then A 3 and B 3 + 6; then C gets b3 to b5 of B's; then B has all b.
    group = Unequal().joins("A", "a").joins("B", "a", "b").joins("C", "b").leaves("C").joins("C", "b")

    assert group.advice("range") == group.actual() == [(0, 0), (3, 6), (3, 3), (3, 6), (3, 3)]


def test_members_that_read_all_topics_are_replayed_as_before() -> None:
    group = Unequal().joins("A", "a", "b").joins("B", "a", "b")

    assert group.advice("range") == group.actual() == [(0, 0), (6, 0)]


@pytest.mark.parametrize(
    ("protocol_type", "shares", "units"),
    [
        (
            "consumer",
            {"m": encode_assignment(Assignment((TopicPartition("a", 1),)))},
            {"m": ["a/1"]},
        ),
        ("consumer", {"m": encode_plain_assignment((TopicPartition("a", 2),))}, {"m": ["a/2"]}),
        (
            "worker",
            {"m": encode_work(WorkShare((WorkItem("c", 0), WorkItem("c", -1)), (WorkItem("c", 1),))), "n": b""},
            {"m": ["c/0", "c/-1"], "n": []},
        ),
        (
            "leader",
            {"m": encode_election(Election("m", 7)), "n": encode_election(Election("m", 7))},
            {"m": [LEADERSHIP], "n": []},
        ),
        (
            "permits",
            {"m": encode_permit(PermitShare(1, 9, 2)), "n": encode_permit(PermitShare(place=1))},
            {"m": ["permit/1"], "n": []},
        ),
        ("own", {"m": b"x y"}, None),
        ("worker", {"m": b"no JSON"}, None),
    ],
)
def test_each_type_of_ours_has_units(
    protocol_type: str, shares: Mapping[str, bytes], units: Mapping[str, Sequence[str]] | None
) -> None:
    found = decode_shares([[member, text(share)] for member, share in shares.items()], protocol_type)

    assert (found and {m: sorted(share) for m, share in found.items()}) == (
        units and {m: sorted(share) for m, share in units.items()}
    )


def test_a_decoder_is_asked_about_its_own_type_only() -> None:
    decoders = load_decoders(f"own={__name__}:names")

    consumer = [["m", text(encode_assignment(Assignment((TopicPartition("a", 1),))))]]
    assert decode_shares(consumer, "consumer", decoders) == {"m": ["a/1"]}
    assert decode_shares([["m", text(b"x y")]], "own", decoders) == {"m": ["x", "y"]}
    assert decode_shares([["m", text(b"x y")]], "other", decoders) is None


@pytest.mark.parametrize("named", ["json:loads", "own=json", "own=json:none_such", "=json:loads"])
def test_what_is_no_decoder_is_named(named: str) -> None:
    with pytest.raises(PipelineFailed, match="decoder"):
        load_decoders(named)


def test_an_election_and_permits_are_replayed_by_no_strategy_of_partitions() -> None:
    group = Unequal().joins("A", "a")
    election = text(encode_election(Election("A", 1)))
    lines = [
        line._replace(payload=line.payload.replace('"consumer"', '"leader"'))
        if line.kind != "assignment_synced"
        else line._replace(payload=json.dumps({**json.loads(line.payload), "assignments": [["A", election]]}))
        for line in group.lines
    ]

    rows = [as_dict(*row) for row in replays(lines, ["range"]) if row.table == "advisor"]

    assert [(row["assignor"], row["units"]) for row in rows] == [(ACTUAL, 1)]


def test_a_handover_of_three_rounds_keeps_its_moves() -> None:
    holders = Holders()
    strategy = "cooperative-sticky"
    holders.assign({"a": ["t/0", "t/1"], "b": ["t/2"]}, strategy)

    taken = holders.assign({"a": [], "b": ["t/2"], "c": []}, strategy)
    some = holders.assign({"a": [], "b": ["t/2"], "c": ["t/0"]}, strategy)
    rest = holders.assign({"a": [], "b": ["t/2", "t/1"], "c": ["t/0"]}, strategy)

    assert [(each.number, each.change.moves, len(each.in_motion)) for each in (taken, some, rest)] == [
        (1, 0, 2),
        (2, 1, 1),
        (3, 1, 0),
    ]
    assert rest.after.units <= rest.before.units


def test_work_of_connectors_is_shared_incrementally() -> None:
    holders = Holders()
    holders.assign({"a": ["c/0", "c/1"]}, "server:incremental")

    revoked = holders.assign({"a": ["c/0"], "b": []}, "server:incremental")
    handed_on = holders.assign({"a": ["c/0"], "b": ["c/1"]}, "server:incremental")

    assert (len(revoked.in_motion), handed_on.number, handed_on.change.moves) == (1, 2, 1)
