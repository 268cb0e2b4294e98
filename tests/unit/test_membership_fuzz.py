"""Whatever the coordinator answers, the client state machine goes on or ends; it never waits for nothing."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rota.core.membership import (
    Event,
    JoinedAsLeader,
    Membership,
    MembershipRequest,
    MembershipSettings,
    RebalanceStarted,
)
from rota.core.membership.events import FINAL
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    CommitOffsets,
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    JoinReply,
    LeaveReply,
    Protocol,
    Reply,
    SyncGroup,
    SyncReply,
)

SETTINGS = MembershipSettings("default", "g", "worker", (Protocol("range"),), 9_000, 6_000)
LONGEST_PAUSE_MS = max(SETTINGS.backoff_cap_ms, SETTINGS.heartbeat_interval_ms)

# Mostly good news, so that the deep states are reached, too.
codes = st.one_of(st.just(ErrorCode.NONE), st.sampled_from(ErrorCode))
member_ids = st.sampled_from(["", "m-1", "m-2"])
generations = st.integers(-1, 5)
join_replies = st.builds(
    JoinReply,
    error=codes,
    pending=st.booleans(),
    member_id=member_ids,
    generation_id=generations,
    leader_id=member_ids,
    skip_assignment=st.booleans(),
    assignment=st.sampled_from([None, None, b"", b"share"]),
)
sync_replies = st.builds(SyncReply, error=codes, pending=st.booleans(), generation_id=generations)
heartbeat_replies = st.builds(HeartbeatReply, error=codes, generation_id=generations)
delays_ms = st.one_of(st.integers(0, 500), st.integers(0, 20_000))


def a_reply(data: st.DataObject, request: MembershipRequest) -> Reply | None:
    """Any answer of the right kind, or none at all."""
    if data.draw(st.integers(0, 9)) == 0:
        return None
    match request:
        case JoinGroup():
            return data.draw(join_replies)
        case SyncGroup():
            return data.draw(sync_replies)
        case Heartbeat():
            return data.draw(heartbeat_replies)
        case _:
            return LeaveReply(data.draw(codes))


def obey(data: st.DataObject, membership: Membership, events: list[Event], now_ms: int) -> None:
    """The shell carries out the requests, or the user changes their mind."""
    for event in events:
        if isinstance(event, JoinedAsLeader):
            membership.assign(event.generation_id, {"m-1": b"share"})
        elif isinstance(event, RebalanceStarted) and data.draw(st.booleans()):
            membership.rejoin(now_ms)
    match data.draw(st.integers(0, 20)):
        case 0:
            membership.request_rejoin(now_ms, "changed")
        case 1:
            membership.leave(now_ms, "bye")
        case 2:
            membership.resync({"m-1": b"more"})


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_random_answers_never_wedge_it(data: st.DataObject) -> None:
    membership, now_ms = Membership(SETTINGS), 0
    for _ in range(data.draw(st.integers(1, 40))):
        planned = membership.next_request(now_ms)
        if planned is None:
            assert membership.state in FINAL
            return
        assert now_ms <= planned.send_at_ms <= now_ms + LONGEST_PAUSE_MS
        sent_at_ms = planned.send_at_ms
        now_ms = sent_at_ms + data.draw(delays_ms)
        reply = a_reply(data, planned.request)
        if reply is None:
            events = membership.on_failure(planned.request, sent_at_ms, now_ms, 1.0)
        else:
            events = membership.on_reply(planned.request, reply, sent_at_ms, now_ms, 1.0)
        obey(data, membership, events, now_ms)
        if membership.deadline_ms is not None:
            assert now_ms < membership.deadline_ms < now_ms + SETTINGS.session_timeout_ms
    assert membership.next_request(now_ms) is not None or membership.state in FINAL


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_answers_to_what_was_never_asked_change_nothing(data: st.DataObject) -> None:
    membership = Membership(SETTINGS)
    planned = membership.next_request(0)
    assert planned is not None
    strangers: list[tuple[MembershipRequest | CommitOffsets, Reply]] = [
        (Heartbeat("default", "g", "m-9", 3), data.draw(heartbeat_replies)),
        (SyncGroup("default", "g", "m-9", 3), data.draw(sync_replies)),
        (replace_member(planned.request, "m-9"), data.draw(join_replies)),
    ]
    for request, reply in strangers:
        membership.on_reply(request, reply, 0, 10, 1.0)
    assert membership.next_request(0) == planned


def replace_member(request: MembershipRequest, member_id: str) -> JoinGroup:
    assert isinstance(request, JoinGroup)
    return replace(request, member_id=member_id)
