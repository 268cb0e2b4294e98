"""Phase two done by the coordinator (protocol.md §4): the requests for it, and the effects of its outcomes."""

from __future__ import annotations

import json

import pytest

from rota.core.types import Departed, TopicFacts
from rota.core.types.leader import decode_election
from rota.protocol.errors import ErrorCode
from rota.protocol.fencing_token import fencing_token
from rota.protocol.messages import JoinedMember, LeaveGroup, LeavingMember
from tests.unit.group.driver import (
    KEY,
    Core,
    a_heartbeat,
    a_join,
    a_leave,
    a_sync,
    an_empty_shard,
)
from tests.unit.group.served import (
    DOCUMENTS,
    SERVER_STICKY,
    Listed,
    a_served_group,
    a_served_static_member,
    asks_for_assignment,
    candidates,
    end_join_phase,
    finish,
    hand_in,
    join,
    the_job,
)


def share(core: Core, member_id: str) -> list[int]:
    answer = core.ask(a_sync(member_id, core.generation_id))
    assert answer.error is ErrorCode.NONE
    numbers: list[int] = json.loads(answer.assignment)["topics"].get("documents", [])
    return numbers


# --- partitions ---------------------------------------------------------------------------------------


def test_syncs_of_all_wait_for_the_server_and_bring_their_shares() -> None:
    core = a_served_group()
    calls = {member_id: core.send(a_sync(member_id, 1)) for member_id in core.ids}
    assert all(core.is_parked(call) for call in calls.values()), "also the leader's, which brings no assignment"

    finish(core)

    shares = [json.loads(core.answer(call).assignment)["topics"]["documents"] for call in calls.values()]
    assert sorted(number for share in shares for number in share) == [0, 1, 2, 3]
    assert core.group.state == "Stable"
    assert core.last("assignment_synced").reason == "the server assigned generation 1 by server:sticky"


def test_a_strategy_sees_what_departed_members_had() -> None:
    core = a_served_static_member()
    share = core.group.members["i-1"].assignment
    join(core, "m1")
    core.send(a_join("i-1", instance="i", protocols=SERVER_STICKY, protocol_type="consumer"))
    core.ask(LeaveGroup(*KEY, (LeavingMember("i-1", "i"),)))
    join(core, "m1")

    assert the_job(core).generation.departed == (Departed("i-1", "i", DOCUMENTS, share, core.now_ms),)
    finish(core)
    assert the_job(core).generation.departed == (), "an assignment has seen it"


def test_the_leader_learns_that_it_need_not_assign() -> None:
    core = an_empty_shard()
    calls = [join(core, "m0"), join(core, "m1")]
    end_join_phase(core)

    leader, follower = map(core.answer, calls)
    assert (leader.leader_id, leader.skip_assignment, leader.members) == ("m0", True, ())
    assert (follower.leader_id, follower.skip_assignment) == ("m0", False)


def test_an_assignment_that_the_leader_sends_anyway_is_ignored() -> None:
    core = a_served_group()
    call = core.send(a_sync("m0", 1, m0=b"everything"))
    assert core.is_parked(call)
    finish(core)

    core.ask(a_sync("m0", 1, m0=b"everything", m1=b"nothing"))

    assert core.generation_id == 1
    assert sorted(share(core, "m0") + share(core, "m1")) == [0, 1, 2, 3]


def test_nobody_is_removed_for_a_sync_that_it_never_sends() -> None:
    core = a_served_group()
    finish(core)

    for _ in range(10):
        core.advance(9_000)
        for member_id in core.ids:
            assert core.ask(a_heartbeat(member_id, 1)).error is ErrorCode.NONE

    assert core.group.state == "Stable"


def test_a_result_for_another_generation_changes_nothing() -> None:
    core = a_served_group()
    late = the_job(core)
    core.ask(a_leave("m1"))
    core.send(a_join("m0", protocols=SERVER_STICKY, protocol_type="consumer"))
    assert core.generation_id == 2

    finish(core, late)

    assert core.group.state == "CompletingRebalance"
    finish(core)
    assert share(core, "m0") == [0, 1, 2, 3]


def test_who_stays_keeps_what_it_had_without_saying_what_it_owns() -> None:
    core = a_served_group(members=3)
    finish(core)
    before = {member_id: share(core, member_id) for member_id in core.ids}

    core.ask(a_leave("m2"))
    for member_id in ("m0", "m1"):
        core.send(a_join(member_id, protocols=SERVER_STICKY, protocol_type="consumer"))
    finish(core)

    for member_id in ("m0", "m1"):
        assert set(before[member_id]) <= set(share(core, member_id))


def test_a_grown_topic_is_a_resync_that_heartbeats_receive() -> None:
    core = a_served_group()
    finish(core)
    waiting = core.send(a_heartbeat("m1", 1, wait_ms=3_000))

    finish(core, topics={"documents": TopicFacts(6)})

    assert core.answer(waiting).generation_id == 2
    assert len(share(core, "m0")) == len(share(core, "m1")) == 3
    assert core.last("assignment_synced").reason.endswith("by server:sticky: documents 4 → 6")


def test_a_partition_that_would_move_makes_a_rebalance() -> None:
    """Else its next member begins before its last one has learnt that it has to stop."""
    core = a_served_group(protocols=(("server:range", DOCUMENTS),))
    finish(core)
    assert (share(core, "m0"), share(core, "m1")) == ([0, 1], [2, 3])

    finish(core, topics={"documents": TopicFacts(6)})

    assert (core.generation_id, core.group.state) == (1, "PreparingRebalance")


def test_a_topic_that_is_gone_makes_a_rebalance() -> None:
    """It may be there again, and another member's, before its last one has fetched that it lost it."""
    core = a_served_group()
    finish(core)

    finish(core, topics={})

    assert core.group.state == "PreparingRebalance"


def test_a_static_member_back_meanwhile_keeps_its_share() -> None:
    core = a_served_static_member()
    late = the_job(core)
    core.ask(a_join(new="i-2", instance="i", protocols=SERVER_STICKY, protocol_type="consumer"))

    finish(core, late, {"documents": TopicFacts(6)})

    assert (core.generation_id, share(core, "i-2")) == (1, [0, 1, 2, 3])


@pytest.mark.parametrize(
    ("topics", "share_of_all", "asks"),
    [(["documents"], {"documents": 4}, False), (["documents", "elsewhere"], {"documents": 4, "elsewhere": 9}, True)],
)
def test_a_static_member_returning_with_other_topics_gets_them(
    topics: list[str], share_of_all: dict[str, int], asks: bool
) -> None:
    core = a_served_static_member()
    core.advance(0)

    changed: Listed = (("server:sticky", json.dumps({"topics": topics}).encode()),)
    core.ask(a_join(new="i-2", instance="i", protocols=changed, protocol_type="consumer"))
    is_asked = asks_for_assignment(core)
    finish(core)

    assert is_asked is asks
    answer = core.ask(a_sync("i-2", core.generation_id))
    assert {name: len(held) for name, held in json.loads(answer.assignment)["topics"].items()} == share_of_all


def test_looking_again_without_a_change_is_no_resync() -> None:
    core = a_served_group()
    finish(core)

    finish(core)

    assert core.generation_id == 1


def test_an_impossible_assignment_notifies_and_all_join_again() -> None:
    core = a_served_group()
    call = core.send(a_sync("m1", 1))

    hand_in(core, "out of luck")

    assert (core.answer(call).error, core.answer(call).detail) == (ErrorCode.ASSIGNMENT_FAILED, "out of luck")
    assert core.group.state == "PreparingRebalance"


def test_a_stable_group_keeps_its_shares_if_assigning_fails() -> None:
    core = a_served_group()
    finish(core)

    hand_in(core, "out of luck")

    assert core.group.state == "Stable"


def test_a_new_owner_finds_the_generation_that_waits() -> None:
    core = a_served_group()
    core.restart()

    assert core.group.pending_sync == {}
    finish(core)

    assert sorted(share(core, "m0") + share(core, "m1")) == [0, 1, 2, 3]


# --- negotiation --------------------------------------------------------------------------------------


def test_a_mixed_group_takes_what_all_of_them_list() -> None:
    both: Listed = (("server:sticky", DOCUMENTS), ("range", b"kafka"))
    core = an_empty_shard()
    join(core, "m0", both)
    join(core, "m1", (("range", b"kafka"),))
    end_join_phase(core)

    assert core.group.protocol_name == "range"
    assert core.shard.assignment_job(*KEY) is None, "so its leader assigns"
    assert [member.metadata for member in _list_of_leader(core, both)] == [b"kafka", b"kafka"]


def test_a_group_moves_to_server_assignment_with_its_last_member() -> None:
    core = an_empty_shard()
    join(core, "m0", (("range", b""),))
    end_join_phase(core)
    core.ask(a_sync("m0", 1, m0=b"all"))

    core.send(a_join("m0", protocols=(*SERVER_STICKY, ("range", b"")), protocol_type="consumer"))
    finish(core)

    assert (core.group.protocol_name, core.generation_id) == ("server:sticky", 2)
    assert share(core, "m0") == [0, 1, 2, 3]


def test_a_member_of_the_server_alone_meets_no_others() -> None:
    core = a_served_group((("range", b""),))

    answer = core.ask(a_join(new="thin", protocols=SERVER_STICKY, protocol_type="consumer"))

    assert answer.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize(
    ("name", "metadata", "why"),
    [
        ("server:luck", DOCUMENTS, "cannot assign groups of type 'consumer' by 'server:luck'"),
        ("server:cooperative-sticky", DOCUMENTS, "cannot assign"),
        ("server:sticky", b'{"topics": "documents"}', "must be a list of names"),
        ("server:sticky", b"\x00", "2 bytes expected"),
    ],
)
def test_what_the_server_could_not_assign_is_refused_at_the_door(name: str, metadata: bytes, why: str) -> None:
    answer = an_empty_shard().ask(a_join(new="m0", protocols=((name, metadata),), protocol_type="consumer"))

    assert answer.error is ErrorCode.INVALID_REQUEST
    assert why in answer.detail


# --- leader -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["single", "server:single"])
def test_one_call_elects(name: str) -> None:
    core = candidates(name=name)

    assert core.group.state == "Stable", "nobody has synced"
    assert core.leader_id == "m0"
    for member_id in core.ids:
        election = decode_election(core.ask(a_sync(member_id, 1)).assignment)
        assert (election.leader_id, election.token, election.endpoint) == ("m0", fencing_token(1), "http://here")


def test_a_leader_that_syncs_as_in_other_groups_changes_nothing() -> None:
    core = candidates()

    core.ask(a_sync("m0", 1))
    core.ask(a_sync("m0", 1, m0=b"mine", m1=b""))

    assert core.generation_id == 1


def test_a_restart_keeps_the_term() -> None:
    core = candidates()

    core.restart()

    assert core.group.state == "Stable"
    assert decode_election(core.ask(a_sync("m1", 1)).assignment).leader_id == "m0"


def _list_of_leader(core: Core, protocols: Listed) -> list[JoinedMember]:
    answer = core.answer(core.send(a_join("m0", protocols=protocols, protocol_type="consumer")))
    return list(answer.members)
