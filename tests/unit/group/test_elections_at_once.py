"""Elections whose leader is gone: the next one is elected in the same transaction, and the others join afterwards."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from rota.core.membership import Membership, MembershipRequest, MembershipSettings
from rota.core.types.leader import Candidate, decode_election, encode_candidate
from rota.protocol.errors import ErrorCode
from rota.protocol.fencing_token import fencing_token
from rota.protocol.messages import (
    HeartbeatError,
    HeartbeatMany,
    JoinGroup,
    MemberHeartbeat,
    Protocol,
    RebalanceGroup,
    Request,
)
from tests.unit.group.driver import (
    KEY,
    REBALANCE_MS,
    SESSION_MS,
    Core,
    a_commit,
    a_heartbeat,
    a_join,
    a_leave,
    a_stable_group,
    a_sync,
    an_empty_shard,
)
from tests.unit.group.served import Listed, candidates, end_join_phase, join

SAID: Listed = (("single", encode_candidate(Candidate("http://here"))),)
HOLDING: Listed = (("single", encode_candidate(Candidate("http://here", holding=True))),)
AT_ONCE = ["rebalance_started", "generation_completed", "leader_changed", "assignment_synced"]
IN_PROGRESS = ErrorCode.REBALANCE_IN_PROGRESS


def rejoin(core: Core, member_id: str) -> int:
    return join(core, member_id, SAID, "leader")


def a_candidate_away() -> Core:
    """`m0` leads; the static `i-1`, which joined before `m2`, missed the last join phase."""
    core = an_empty_shard()
    join(core, "m0", SAID, "leader")
    core.send(a_join(new="i-1", instance="i", protocols=SAID, protocol_type="leader", session_ms=60_000))
    end_join_phase(core)
    join(core, "m2", SAID, "leader")
    join(core, "m0", SAID, "leader")
    end_join_phase(core)
    assert core.group.members["i-1"].missed_phase
    return core


def a_hand_over_after_an_election() -> Core:
    """`m1` and `m2` were taken along into generation 2; `m1`, which leads, is asked to hand over in generation 3."""
    core = an_empty_shard()
    for member_id in ("m0", "m1", "m2"):
        join(core, member_id, HOLDING, "leader")
    end_join_phase(core)
    core.ask(a_leave("m0"))
    core.ask(a_heartbeat("m1", 2))
    core.ask(RebalanceGroup(*KEY, step_down=True))
    assert (core.leader_id, core.generation_id, core.group.state) == ("m1", 3, "Stable")
    return core


def expire(core: Core) -> None:
    """The session of `m0` runs out; the others send heartbeats."""
    generation_id = core.generation_id
    while "m0" in core.group.members:
        core.advance(500)
        for member_id in ("m1", "m2"):
            core.ask(a_heartbeat(member_id, generation_id))


DEPARTURES: dict[str, Callable[[Core], object]] = {
    "member_left": lambda core: core.ask(a_leave("m0")),
    "member_removed": lambda core: core.ask(a_leave("m0", by_admin=True)),
    "member_expired": expire,
}


@pytest.mark.parametrize("kind", DEPARTURES)
def test_a_departure_and_the_next_leader_are_one_transaction(kind: str) -> None:
    core = candidates(3)
    before = len(core.kinds())

    DEPARTURES[kind](core)

    assert [each for each in core.kinds()[before:] if each != "session_stats"] == [kind, *AT_ONCE]
    assert (core.leader_id, core.generation_id, core.group.state) == ("m1", 2, "Stable")


def test_members_taken_along_are_asked_to_join_and_answered() -> None:
    core = candidates(3)
    core.ask(a_leave("m0"))

    for member_id in ("m1", "m2"):
        assert core.ask(a_heartbeat(member_id, 1)).error is IN_PROGRESS
        joined = core.answer(rejoin(core, member_id))
        assert (joined.error, joined.leader_id, joined.generation_id) == (ErrorCode.NONE, "m1", 2)
        assert joined.fencing_token == fencing_token(2)
        election = decode_election(joined.assignment)
        assert (election.leader_id, election.token) == ("m1", fencing_token(2))
        assert core.ask(a_heartbeat(member_id, 2)).error is ErrorCode.NONE
    assert core.generation_id == 2


def test_a_leader_whose_answer_was_lost_may_join_again() -> None:
    core = candidates()
    core.ask(a_leave("m0"))

    answers = [core.answer(rejoin(core, "m1")) for _ in range(3)]

    assert {answer.generation_id for answer in answers} == {2}


def test_parked_heartbeats_are_answered_that_the_group_moves() -> None:
    core = candidates()
    call = core.send(a_heartbeat("m1", 1, wait_ms=60_000))
    assert core.is_parked(call)

    core.ask(a_leave("m0"))

    assert core.answer(call).error is IN_PROGRESS


def test_parked_heartbeats_get_what_joins_would_get() -> None:
    core = candidates(3)
    calls = {member_id: core.send(a_heartbeat(member_id, 1, wait_ms=60_000)) for member_id in ("m1", "m2")}

    core.ask(a_leave("m0"))

    entered = {member_id: core.answer(call).entered for member_id, call in calls.items()}
    assert entered == {member_id: core.answer(rejoin(core, member_id)) for member_id in calls}


def test_parked_heartbeats_get_no_generation_in_a_join_phase() -> None:
    core = candidates()
    call = core.send(a_heartbeat("m1", 1, wait_ms=60_000))

    join(core, "m2", SAID, "leader")

    assert (core.answer(call).error, core.answer(call).entered) == (IN_PROGRESS, None)


def test_the_news_of_an_election_renews_no_session() -> None:
    core = candidates()
    core.send(a_heartbeat("m1", 1, wait_ms=60_000))
    until_ms = core.deadline_ms("m1")
    core.advance(3_000)

    core.ask(a_leave("m0"))

    assert core.deadline_ms("m1") == until_ms


def test_a_term_by_election_ends_before_its_session() -> None:
    core = an_empty_shard()
    join(core, "m0", SAID, "leader")
    end_join_phase(core)
    settings = MembershipSettings(
        *KEY, "leader", (Protocol(*SAID[0]),), session_timeout_ms=SESSION_MS, rebalance_timeout_ms=REBALANCE_MS
    )
    candidate = Membership(settings)

    def send() -> tuple[MembershipRequest, int, int]:
        planned = candidate.next_request(core.now_ms)
        assert planned is not None
        request = planned.request
        if isinstance(request, JoinGroup):
            request = replace(request, new_member_id="m1")
        return planned.request, core.send(request), core.now_ms

    def take(request: MembershipRequest, call: int, sent_at_ms: int) -> None:
        candidate.on_reply(request, core.answer(call), sent_at_ms, core.now_ms, 0.0)

    take(*send())
    joining = send()
    join(core, "m0", SAID, "leader")
    take(*joining)
    core.advance(1_000)
    waiting = send()
    core.advance(2_000)
    core.ask(a_leave("m0"))
    take(*waiting)

    candidate.rejoin(core.now_ms, settings.protocols, holding=True)

    until_ms, session_until_ms = candidate.deadline_ms, core.deadline_ms("m1")
    assert (candidate.is_leader, candidate.holds(core.now_ms)) == (True, True)
    assert until_ms is not None
    assert session_until_ms is not None
    assert until_ms < session_until_ms, "by its own clock it leads until after its session"


def test_heartbeats_together_ask_members_taken_along_to_join() -> None:
    core = candidates(3)
    core.ask(a_leave("m0"))
    rejoin(core, "m1")

    beats = (MemberHeartbeat("m1", 2), MemberHeartbeat("m2", 1))
    errors = core.ask(HeartbeatMany(*KEY, beats)).errors

    assert errors == (HeartbeatError("m2", IN_PROGRESS, "m0 left"),)
    assert core.deadline_ms("m2") == core.deadline_ms("m1"), "its session is not renewed"


def test_heartbeats_together_show_that_shares_are_there() -> None:
    core = candidates(3)
    core.ask(a_leave("m0"))

    for _ in range(REBALANCE_MS // 1_000 + 1):
        core.advance(1_000)
        beats = (MemberHeartbeat("m1", 2), MemberHeartbeat("m2", 2))
        assert not core.ask(HeartbeatMany(*KEY, beats)).errors

    assert list(core.group.members) == ["m1", "m2"]
    assert core.ask(a_heartbeat("m2", 1)).error is ErrorCode.ILLEGAL_GENERATION, "it holds no former generation"


def test_heartbeats_of_the_former_generation_show_nothing() -> None:
    core = candidates(3)
    core.ask(a_leave("m0"))

    while "m2" in core.group.members:
        core.advance(1_000)
        core.ask(HeartbeatMany(*KEY, (MemberHeartbeat("m1", 2), MemberHeartbeat("m2", 1))))

    assert core.last("member_expired").reason == "did not sync within the rebalance timeout"


def test_heartbeats_of_before_a_hand_over_show_nothing() -> None:
    core = a_hand_over_after_an_election()

    core.ask(HeartbeatMany(*KEY, (MemberHeartbeat("m2", 2),)))

    assert core.ask(a_heartbeat("m2", 1)).error is IN_PROGRESS, "it may still hold the first generation"


def test_a_sync_of_before_a_hand_over_is_of_an_old_generation() -> None:
    core = a_hand_over_after_an_election()

    assert core.ask(a_sync("m2", 1)).error is IN_PROGRESS
    assert core.ask(a_sync("m2", 2)).error is ErrorCode.ILLEGAL_GENERATION


def test_the_former_generation_is_over_for_syncs_and_commits() -> None:
    core = candidates()
    core.ask(a_leave("m0"))

    reply = core.ask(a_sync("m1", 1))
    assert (reply.error, reply.detail) == (IN_PROGRESS, "m0 left")
    assert "request_fenced" not in core.kinds(), "it is no zombie"
    assert core.ask(a_commit("m1", 1)).error is ErrorCode.ILLEGAL_GENERATION


@pytest.mark.parametrize("request_", [a_sync("m1", 2), a_heartbeat("m1", 2)], ids=["sync", "heartbeat"])
def test_a_member_in_the_generation_holds_no_former_one(request_: Request) -> None:
    core = candidates()
    core.ask(a_leave("m0"))
    rejoin(core, "m1")
    core.ask(request_)

    assert core.ask(a_heartbeat("m1", 1)).error is ErrorCode.ILLEGAL_GENERATION


def test_a_member_that_was_answered_owes_no_sync() -> None:
    core = candidates(3)
    core.ask(a_leave("m0"))
    rejoin(core, "m1")
    rejoin(core, "m2")
    timeout_ms = core.group.rebalance_timeout_ms()

    for _ in range(timeout_ms // 1_000 + 1):
        core.advance(1_000)
        for member_id in ("m1", "m2"):
            core.ask(a_heartbeat(member_id, 2))

    assert list(core.group.members) == ["m1", "m2"]


def test_a_member_may_be_taken_along_more_than_once() -> None:
    core = candidates(3)
    core.ask(a_leave("m0"))
    core.ask(a_leave("m1"))

    assert (core.leader_id, core.generation_id) == ("m2", 3)
    assert core.ask(a_heartbeat("m2", 1)).error is IN_PROGRESS
    assert core.answer(rejoin(core, "m2")).leader_id == "m2"


def test_a_silent_candidate_leads_until_its_own_session_is_over() -> None:
    core = candidates(3)
    deadline_ms = core.deadline_ms("m1")
    assert deadline_ms is not None
    core.advance(1_000)
    core.ask(a_heartbeat("m2", 1))

    core.ask(a_leave("m0"))

    assert (core.leader_id, core.deadline_ms("m1")) == ("m1", deadline_ms)
    rejoin(core, "m2")
    core.ask(a_sync("m2", 2))
    while core.leader_id == "m1":
        core.ask(a_heartbeat("m2", core.generation_id))
        core.advance(100)
        assert core.now_ms <= deadline_ms + 100
    assert core.leader_id == "m2"


def test_a_member_that_never_joins_is_removed_in_the_end() -> None:
    core = candidates(3)
    timeout_ms = core.group.rebalance_timeout_ms()
    core.ask(a_leave("m0"))
    rejoin(core, "m2")
    core.ask(a_sync("m2", 2))
    began_ms = core.now_ms

    while core.leader_id == "m1":
        core.advance(1_000)
        assert core.now_ms <= began_ms + timeout_ms + 1_000
        core.ask(a_heartbeat("m1", 1))
        core.ask(a_heartbeat("m2", 2))

    assert core.last("member_expired").cause == "sync_timeout"
    assert core.leader_id == "m2"


def test_a_member_id_that_was_only_given_out_is_not_waited_for() -> None:
    core = candidates()
    core.ask(a_join(new="m9", protocols=SAID, protocol_type="leader"))

    core.ask(a_leave("m0"))

    assert (core.leader_id, core.group.state) == ("m1", "Stable")


def test_a_static_candidate_that_is_away_is_not_elected() -> None:
    core = a_candidate_away()

    core.ask(a_leave("m0"))

    assert core.leader_id == "m2"


def test_no_leader_is_elected_while_all_candidates_are_away() -> None:
    core = a_candidate_away()

    core.ask(a_leave("m0", "m2"))

    assert core.group.state == "PreparingRebalance"


def test_where_a_follower_leaves_the_leader_joins_again() -> None:
    core = candidates(3)

    core.ask(a_leave("m2"))

    assert core.group.state == "PreparingRebalance"
    assert core.ask(a_heartbeat("m0", 1)).error is IN_PROGRESS


def test_where_members_assign_all_join_again() -> None:
    core = a_stable_group(3)

    core.ask(a_leave(core.leader_id))

    assert core.group.state == "PreparingRebalance"


def test_a_candidate_with_other_metadata_begins_a_rebalance() -> None:
    core = candidates()
    core.ask(a_leave("m0"))

    core.send(a_join("m1", protocols=(("single", b""),), protocol_type="leader"))

    assert core.last("rebalance_started").cause == "leader_rejoined"
    assert core.group.members["m1"].image.protocols == (Protocol("single", b""),)


def test_a_new_owner_has_the_election_and_asks_all_to_join() -> None:
    core = candidates()
    core.ask(a_leave("m0"))

    core.restart()

    assert (core.leader_id, core.generation_id, core.group.state) == ("m1", 2, "Stable")
    assert core.ask(a_heartbeat("m1", 1)).error is ErrorCode.ILLEGAL_GENERATION


def test_a_join_renews_the_session_of_a_member_taken_along() -> None:
    """It takes the answer for the end of a join phase, which counts from the moment of its join (found in a review)."""
    core = candidates()
    core.advance(3_000)
    core.ask(a_leave("m0"))

    rejoin(core, "m1")

    assert core.deadline_ms("m1") == core.now_ms + SESSION_MS


def test_a_static_candidate_that_returns_owes_no_sync() -> None:
    core = an_empty_shard()
    join(core, "m0", SAID, "leader")
    core.send(a_join(new="i-1", instance="i", protocols=SAID, protocol_type="leader"))
    join(core, "m2", SAID, "leader")
    end_join_phase(core)
    core.ask(a_leave("m0"))
    rejoin(core, "m2")
    answer = core.ask(a_join(new="i-2", instance="i", protocols=SAID, protocol_type="leader"))
    assert decode_election(answer.assignment).leader_id == core.leader_id

    for _ in range(REBALANCE_MS // 1_000 + 1):
        core.advance(1_000)
        beats = (MemberHeartbeat("i-2", 2, "i"), MemberHeartbeat("m2", 2))
        assert not core.ask(HeartbeatMany(*KEY, beats)).errors

    assert set(core.group.members) == {"i-2", "m2"}


def test_a_static_candidate_that_is_back_may_lead_next() -> None:
    core = a_candidate_away()
    core.ask(a_join("i-1", instance="i", protocols=SAID, protocol_type="leader", session_ms=60_000))

    core.ask(a_leave("m0"))

    assert core.leader_id == "i-1"


def test_candidates_that_choose_another_protocol_join_first() -> None:
    both: Listed = (("foo", b""), SAID[0])
    core = an_empty_shard()
    join(core, "m0", SAID, "leader")
    join(core, "m1", both, "leader")
    end_join_phase(core)
    assert core.group.protocol_name == "single"

    core.ask(a_leave("m0"))

    assert core.group.state == "PreparingRebalance"
