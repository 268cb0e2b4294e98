"""Requests of one message that differ in their member alone are read once, and answers of a generation written once."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rota.protocol.errors import RejectedRequest
from rota.protocol.limits import Limits
from rota.protocol.messages import (
    CommitOffsets,
    JoinedMember,
    JoinGroup,
    JoinReply,
    LeaveGroup,
    LeaveReply,
    Reply,
    SyncGroup,
    SyncReply,
)
from rota.v1 import coordinator_pb2 as pb
from rota.wire.repeated import Repeated, RepeatedAnswers
from rota.wire.rpcs import RPCS, Rpc

JOIN, SYNC = RPCS[JoinGroup], RPCS[SyncGroup]
PLACE: dict[str, Any] = {"namespace": "n", "group_id": "g"}


def a_join(member_id: str, **said: Any) -> pb.JoinGroupRequest:
    protocols = [pb.Protocol(name="range", metadata=b"m")]
    return pb.JoinGroupRequest(
        **{**PLACE, "member_id": member_id, "protocol_type": "worker", "protocols": protocols, **said}
    )


def a_sync(member_id: str, **said: Any) -> pb.SyncGroupRequest:
    return pb.SyncGroupRequest(**{**PLACE, "member_id": member_id, "generation_id": 3, **said})


def read_all(messages: list[tuple[Rpc, Any]]) -> tuple[list[Any], int]:
    """What each of them means, or why it is refused; and how many of them were not decoded."""
    repeated, outcomes, found = Repeated(), [], 0
    for rpc, message in messages:
        request = repeated.find(rpc, message)
        if request is None:
            try:
                request = rpc.read_request(message, Limits(), **given_to(rpc))
                repeated.keep(rpc, request)
            except RejectedRequest as rejected:
                request = (rejected.code, rejected.detail)
        else:
            found += 1
        outcomes.append(request)
    return outcomes, found


def read_alone(rpc: Rpc, message: Any) -> Any:
    try:
        return rpc.read_request(message, Limits(), **given_to(rpc))
    except RejectedRequest as rejected:
        return (rejected.code, rejected.detail)


def given_to(rpc: Rpc) -> dict[str, str]:
    return {"host": "10.0.0.7"} if rpc is JOIN else {}


SAID = st.fixed_dictionaries(
    {},
    optional={
        "namespace": st.sampled_from(["n", "m", "", "a b"]),
        "group_id": st.sampled_from(["g", "h", "", "a b"]),
        "group_instance_id": st.sampled_from(["i1", "i2", ""]),
        "protocol_type": st.sampled_from(["worker", "leader", ""]),
        "wait_ms": st.sampled_from([0, 50_000, -1]),
    },
)
MEMBER_IDS = st.sampled_from(["", "a", "b", "c" * 512, "d" * 513, "e\n"])
LEAVE = pb.LeaveGroupRequest(**PLACE, members=[pb.LeavingMember(member_id="a")])
COMMIT = pb.CommitOffsetsRequest(**PLACE, member_id="a", offsets=[pb.OffsetToCommit(topic="t", partition=0, offset=1)])
MESSAGES = st.one_of(
    st.builds(lambda member_id, said: (JOIN, a_join(member_id, **said)), MEMBER_IDS, SAID),
    st.builds(lambda member_id, said: (SYNC, a_sync(member_id, **said)), MEMBER_IDS, SAID),
    st.just((RPCS[LeaveGroup], LEAVE)),
    st.just((RPCS[CommitOffsets], COMMIT)),
)


@settings(max_examples=300)
@given(st.lists(MESSAGES, max_size=12))
def test_each_request_is_read_as_it_would_be_alone(messages: list[tuple[Rpc, Any]]) -> None:
    outcomes, _ = read_all(messages)

    assert outcomes == [read_alone(rpc, message) for rpc, message in messages]


@pytest.mark.parametrize(("rpc", "say"), [(JOIN, a_join), (SYNC, a_sync)])
def test_members_that_say_the_same_are_decoded_once(rpc: Rpc, say: Any) -> None:
    messages = [(rpc, say(f"m{n}", group_id=f"g{n // 2}")) for n in range(5)]

    assert read_all(messages)[1] == 4


def test_the_message_is_left_as_it_was() -> None:
    message = a_join("m1")

    Repeated().find(JOIN, message)

    assert message == a_join("m1")


REPLIES = st.one_of(
    st.builds(
        JoinReply,
        pending=st.booleans(),
        member_id=MEMBER_IDS,
        generation_id=st.sampled_from([1, 2]),
        protocol_name=st.sampled_from([None, "range"]),
        members=st.sampled_from([(), (JoinedMember("a", None, b"m"),)]),
        fencing_token=st.sampled_from([0, 7]),
        assignment=st.sampled_from([None, b"", b"share"]),
    ),
    st.builds(
        SyncReply,
        pending=st.booleans(),
        generation_id=st.sampled_from([1, 2]),
        assignment=st.sampled_from([b"", b"share", b"other"]),
        fencing_token=st.sampled_from([0, 7]),
    ),
    st.just(LeaveReply()),
)
FIELDS = {JoinReply: (JOIN, "joined"), SyncReply: (SYNC, "synced"), LeaveReply: (RPCS[LeaveGroup], "left")}


@settings(max_examples=300)
@example([(SyncReply(pending=True, assignment=share), 0, 0) for share in (b"a", b"b", b"c")])
@given(st.lists(st.tuples(REPLIES, st.sampled_from([0, 1]), st.sampled_from([0, 1])), max_size=12))
def test_each_answer_is_written_as_it_would_be_alone(answers: list[tuple[Reply, int, int]]) -> None:
    repeated, events, alone = RepeatedAnswers(), [], []
    for reply, revision, epoch in answers:
        rpc, field = FIELDS[type(reply)]
        events.append(pb.SessionEvent())
        repeated.fill(rpc, getattr(events[-1], field), reply, revision, epoch)
        alone.append(pb.SessionEvent())
        rpc.fill_answer(getattr(alone[-1], field), reply, revision, epoch)

    assert events == alone
    assert [each.WhichOneof("event") for each in events] == [each.WhichOneof("event") for each in alone]


@pytest.mark.parametrize("kind", [JoinReply, SyncReply])
def test_answers_that_say_the_same_are_written_twice_at_most(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rpc, field = FIELDS[kind]
    own = "member_id" if kind is JoinReply else "assignment"
    fill = Mock(wraps=rpc.fill_answer)
    monkeypatch.setattr(rpc, "fill_answer", fill)

    repeated = RepeatedAnswers()
    for n in range(5):
        value = f"m{n}" if kind is JoinReply else b"%d" % n
        repeated.fill(rpc, getattr(pb.SessionEvent(), field), kind(generation_id=3, **{own: value}), 1, 1)

    assert fill.call_count == 2


def test_nothing_that_may_be_large_is_kept() -> None:
    repeated = RepeatedAnswers()
    for _ in range(3):
        for reply in (
            JoinReply(members=(JoinedMember("a", None, bytes(10_000)),)),
            JoinReply(assignment=bytes(10_000)),
            SyncReply(assignment=bytes(10_000)),
        ):
            rpc, field = FIELDS[type(reply)]
            repeated.fill(rpc, getattr(pb.SessionEvent(), field), reply, 1, 1)

    assert [written.ByteSize() < 100 for _, written in repeated._last.values()] == [True]
