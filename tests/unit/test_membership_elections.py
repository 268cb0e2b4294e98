"""A member that an election took along enters the next generation without a join, which renews no session."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rota.core.membership import Assigned, Lost, RebalanceStarted, State
from rota.protocol.errors import ErrorCode
from rota.protocol.fencing_token import fencing_token
from rota.protocol.messages import Heartbeat, HeartbeatReply, JoinGroup, JoinReply
from tests.unit.membership_bench import (
    BEATING,
    CLAIMS,
    MARGIN_MS,
    POLL_MS,
    REBALANCING,
    SESSION_MS,
    SETTINGS,
    Bench,
    a_stable_follower,
)

TOKEN = fencing_token(2)
ENTERED = JoinReply(
    member_id="m-1",
    generation_id=2,
    protocol_type="worker",
    protocol_name="range",
    leader_id="m-1",
    skip_assignment=True,
    fencing_token=TOKEN,
    assignment=b"leads",
)
ELECTED = replace(REBALANCING, entered=ENTERED)
PRESENT = replace(BEATING, generation_id=2)


def an_elected_member(reply: HeartbeatReply = ELECTED) -> Bench:
    """Its heartbeat, sent at `sent_at_ms`, was answered that an election took it along."""
    bench = a_stable_follower()
    assert [type(event) for event in bench.answered(reply)] == [RebalanceStarted]
    return bench


def test_it_leads_without_a_join_and_sends_a_heartbeat_at_once() -> None:
    bench = an_elected_member()

    events = bench.membership.rejoin(bench.now_ms, SETTINGS.protocols, holding=True)

    assert events == [Assigned(2, "range", "m-1", True, b"leads", TOKEN)]
    assert (bench.membership.state, bench.membership.is_leader) == (State.STABLE, True)
    assert bench.pause_ms() == 0
    request = bench.sends()
    assert isinstance(request, Heartbeat)
    assert (request.member_id, request.generation_id) == ("m-1", 2)


def test_its_term_counts_from_its_acknowledged_heartbeat() -> None:
    bench = an_elected_member()
    acknowledged_ms = bench.sent_at_ms
    revoke_by_ms = bench.membership.revoke_by_ms
    bench.passes(POLL_MS - 100)

    bench.membership.rejoin(bench.now_ms, SETTINGS.protocols, holding=True)

    assert bench.membership.state is State.STABLE
    assert bench.membership.deadline_ms == acknowledged_ms + SESSION_MS - MARGIN_MS
    assert bench.membership.revoke_by_ms == revoke_by_ms, "nothing has shown that the coordinator knows of its share"


def test_a_heartbeat_in_the_generation_renews_its_term() -> None:
    bench = an_elected_member()
    bench.membership.rejoin(bench.now_ms, SETTINGS.protocols, holding=True)

    bench.answered(PRESENT)

    assert bench.membership.deadline_ms == bench.sent_at_ms + SESSION_MS - MARGIN_MS


def test_late_in_its_session_a_heartbeat_goes_before_its_work() -> None:
    bench = an_elected_member()
    bench.passes(POLL_MS)

    assert bench.membership.rejoin(bench.now_ms, SETTINGS.protocols, holding=True) == []
    assert isinstance(bench.sends(), Heartbeat)
    events = bench.answered(PRESENT)

    assert events == [Assigned(2, "range", "m-1", True, b"leads", TOKEN)]
    assert bench.membership.deadline_ms == bench.sent_at_ms + SESSION_MS - MARGIN_MS


def test_after_its_session_it_enters_nothing() -> None:
    bench = an_elected_member()
    lost = bench.passes(SESSION_MS)

    assert [type(event) for event in lost] == [Lost]
    assert bench.membership.rejoin(bench.now_ms, SETTINGS.protocols, holding=True) == []
    assert isinstance(bench.sends(), JoinGroup)


@pytest.mark.parametrize(
    "entered",
    [
        None,
        replace(ENTERED, member_id="m-0"),
        replace(ENTERED, generation_id=1),
        replace(ENTERED, protocol_type="leader"),
        replace(ENTERED, protocol_name="sticky"),
        replace(ENTERED, assignment=None),
    ],
    ids=["none", "another member", "no later generation", "another type", "another protocol", "no share"],
)
def test_it_joins_where_the_answer_is_not_for_it(entered: JoinReply | None) -> None:
    bench = an_elected_member(replace(REBALANCING, entered=entered))

    assert bench.membership.rejoin(bench.now_ms, SETTINGS.protocols, holding=True) == []
    assert isinstance(bench.sends(), JoinGroup)


def test_it_joins_with_metadata_that_has_changed() -> None:
    bench = an_elected_member()

    assert bench.membership.rejoin(bench.now_ms, CLAIMS, holding=True) == []
    assert isinstance(bench.sends(), JoinGroup)


def test_it_joins_where_it_has_given_its_share_up() -> None:
    bench = an_elected_member()

    assert bench.membership.rejoin(bench.now_ms, SETTINGS.protocols) == []
    assert isinstance(bench.sends(), JoinGroup)


def test_it_joins_where_the_group_rebalances_once_more() -> None:
    bench = an_elected_member()
    bench.answered(REBALANCING)

    assert bench.membership.rejoin(bench.now_ms, SETTINGS.protocols, holding=True) == []
    assert isinstance(bench.sends(), JoinGroup)


@pytest.mark.parametrize("answer", [PRESENT, replace(PRESENT, state="")], ids=["an owner", "a replica for its owner"])
def test_a_rejoin_outlives_the_heartbeat_before_its_share(answer: HeartbeatReply) -> None:
    bench = an_elected_member(replace(REBALANCING, entered=replace(ENTERED, leader_id="m-0")))
    bench.passes(POLL_MS)
    bench.membership.rejoin(bench.now_ms, SETTINGS.protocols, holding=True)
    heartbeat = bench.begins()

    bench.membership.request_rejoin(bench.now_ms, "its metadata changed", CLAIMS)
    events = bench.membership.on_reply(heartbeat, answer, bench.sent_at_ms, bench.now_ms, jitter=1.0)

    assert (events, bench.membership.state) == ([], State.REVOKING)
    assert bench.membership.rejoin(bench.now_ms, CLAIMS, holding=True) == []
    request = bench.sends()
    assert isinstance(request, JoinGroup)
    assert request.protocols == CLAIMS


def test_it_waits_while_work_on_a_lost_share_ends() -> None:
    bench = an_elected_member()
    bench.membership.hold_off(True)

    assert bench.membership.rejoin(bench.now_ms, SETTINGS.protocols, holding=True) == []
    assert bench.membership.next_request(bench.now_ms) is None


@pytest.mark.parametrize("code", [ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID])
def test_an_outdated_election_ends_with_its_first_heartbeat(code: ErrorCode) -> None:
    bench = an_elected_member()
    bench.membership.rejoin(bench.now_ms, SETTINGS.protocols, holding=True)

    events = bench.answered(HeartbeatReply(code))

    assert [type(event) for event in events] == [Lost]
    assert isinstance(bench.sends(), JoinGroup)
