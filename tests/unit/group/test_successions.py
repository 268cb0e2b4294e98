"""A plug-in's way of choosing leaders: what its functions are given, and what happens where one of them fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pytest

from rota.core.types import Generation, JoinedWith, ProtocolType, ServerSide, Succession, registry
from rota.protocol.fencing_token import fencing_token
from rota.protocol.messages import RebalanceGroup
from tests.unit.group.driver import KEY, Core, a_join, a_leave, a_sync, an_empty_shard
from tests.unit.group.served import Listed, a_served_group, end_join_phase, hand_in, join

TYPE, NAME = "crown", "server:crown"
METADATA = b"7"
PROTOCOLS: Listed = ((NAME, METADATA),)
Crown: TypeAlias = Callable[..., list[Generation]]
"""Installs the type with these functions in place of harmless ones; returns what is going to be assigned."""


def fail(*_: object) -> Any:
    raise KeyError("crown")


def the_first(members: Sequence[JoinedWith], leader_id: str) -> str:
    return leader_id or members[0].member_id


@pytest.fixture
def crown(monkeypatch: pytest.MonkeyPatch) -> Crown:
    def install(**functions: Any) -> list[Generation]:
        assigned: list[Generation] = []

        def assign(generation: Generation, _topics: object) -> dict[str, bytes]:
            assigned.append(generation)
            return {member.member_id: generation.successor_id.encode() for member in generation.members}

        harmless: dict[str, Any] = {
            "elect": the_first,
            "challengers": lambda *_: {},
            "priority": int,
            "successor": bytes.decode,
            "holding": bool,
        }
        assigns = functions.pop("assign", assign)
        side = ServerSide(NAME.__eq__, assigns, succession=Succession(**(harmless | functions)))
        monkeypatch.setitem(registry._TYPES, TYPE, ProtocolType(TYPE, fail, fail, server=side))
        return assigned

    return install


def a_group(members: int = 3) -> Core:
    """`m0` leads, and has fetched its share."""
    core = a_served_group(PROTOCOLS, members, TYPE)
    core.ask(a_sync("m0", 1))
    return core


@pytest.mark.parametrize("elect", [fail, lambda *_: "stranger"], ids=["raises", "names a stranger"])
def test_the_earliest_member_leads_where_an_election_fails(crown: Crown, elect: Callable[..., str]) -> None:
    crown(elect=elect)
    core = a_group()
    assert core.leader_id == "m0"

    core.ask(a_leave("m0"))
    assert core.group.state == "PreparingRebalance", "followers of this type may hold something"
    for member_id in ("m1", "m2"):
        join(core, member_id, PROTOCOLS, TYPE)

    assert core.leader_id == "m1"


@pytest.mark.parametrize("elect", [fail, lambda *_: "stranger"], ids=["raises", "names a stranger"])
def test_the_earliest_other_follows_where_an_election_fails(crown: Crown, elect: Callable[..., str]) -> None:
    crown(elect=elect)
    core = a_group()

    core.ask(RebalanceGroup(*KEY, step_down=True))

    assert core.group.members["m0"].assignment == b"m1"


def test_an_election_is_given_the_members_with_their_instances(crown: Crown) -> None:
    def elect(members: Sequence[JoinedWith], leader_id: str) -> str:
        given.append((tuple(members), leader_id))
        return the_first(members, leader_id)

    given: list[tuple[tuple[JoinedWith, ...], str]] = []
    crown(elect=elect)
    core = an_empty_shard()
    core.send(a_join(new="i-1", instance="i", protocols=PROTOCOLS, protocol_type=TYPE))
    join(core, "m1", PROTOCOLS, TYPE)
    end_join_phase(core)

    assert given == [((JoinedWith("i-1", "i", METADATA), JoinedWith("m1", None, METADATA)), "")]


def test_the_election_of_a_successor_is_without_the_leader(crown: Crown) -> None:
    def elect(members: Sequence[JoinedWith], leader_id: str) -> str:
        given.append(([member.member_id for member in members], leader_id))
        return the_first(members, leader_id)

    given: list[tuple[list[str], str]] = []
    crown(elect=elect)
    core = a_group()

    core.ask(RebalanceGroup(*KEY, step_down=True))

    assert given[-1] == (["m1", "m2"], "")


def test_a_request_to_hand_over_is_assigned_with_its_token(crown: Crown) -> None:
    assigned = crown()
    core = an_empty_shard()
    core.send(a_join(new="i-1", instance="i", protocols=PROTOCOLS, protocol_type=TYPE))
    join(core, "m1", PROTOCOLS, TYPE)
    end_join_phase(core)
    core.ask(a_sync("i-1", 1, "i"))

    core.ask(RebalanceGroup(*KEY, step_down=True))

    token = fencing_token(2)
    members = (JoinedWith("i-1", "i", METADATA, b"", token), JoinedWith("m1", None, METADATA, b"", token))
    assert assigned[-1] == Generation(2, "i-1", NAME, members, token, "m1")


def test_a_leader_whose_share_cannot_be_read_joins_again(crown: Crown) -> None:
    crown(successor=fail)
    core = a_group()

    join(core, "m0", PROTOCOLS, TYPE)

    assert core.last("rebalance_started").reason == "leader m0 joined again"


def test_a_leader_that_was_asked_is_not_asked_again(crown: Crown) -> None:
    """Whatever the type says: each request opens a generation."""
    crown(challengers=lambda *_: {"m1": 0})
    core = a_group()

    core.advance(0)

    assert (core.generation_id, core.group.members["m0"].assignment) == (2, b"m1")


def test_a_leader_whose_sync_has_waited_hands_over_at_once(crown: Crown) -> None:
    crown(assign=fail)
    core = a_served_group(PROTOCOLS, 2, TYPE)
    call = core.send(a_sync("m0", 1))
    crown()
    hand_in(core, {"m0": b"", "m1": b""})
    assert core.answer(call).generation_id == 1

    core.ask(RebalanceGroup(*KEY, step_down=True))

    assert (core.generation_id, core.group.members["m0"].assignment) == (2, b"m1")


def test_a_priority_that_cannot_be_read_is_the_lowest(crown: Crown) -> None:
    crown(priority=fail, challengers=lambda *_: {"m1": 0})
    core = a_group()

    core.advance(0)

    assert core.last("assignment_synced").reason == (
        "candidate m1 of priority 0 has outranked leader m0 of priority 0 for 0 ms: it is asked to hand over to m1"
    )
