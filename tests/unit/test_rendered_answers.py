"""Answers that are written out, because they are frequent, are those that the shapes would write."""

from __future__ import annotations

import pytest

from rota.api.http.rendered import JSON_HEADERS, Rendered, render_answer
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    CommitReply,
    HeartbeatReply,
    JoinedMember,
    JoinReply,
    PartitionResult,
    Reply,
    SyncReply,
)
from rota.replica.ports import Answer
from rota.wire.documents import dump_document
from rota.wire.replies import encode_reply

ODD_TEXT = 'ü"\\/\x7f\u2028'
REPLIES: list[Reply] = [
    JoinReply(member_id="m", generation_id=7, protocol_type="worker", protocol_name="range", leader_id="m-2"),
    JoinReply(member_id=ODD_TEXT, generation_id=0, leader_id=ODD_TEXT, skip_assignment=True, fencing_token=2**53 - 1),
    JoinReply(
        member_id="m",
        generation_id=2**31 - 1,
        protocol_type=ODD_TEXT,
        protocol_name="",
        members=(
            JoinedMember("m", None, b""),
            JoinedMember(ODD_TEXT, ODD_TEXT, b"\x00\xff\xfe"),
            JoinedMember("", "", b"a"),
        ),
    ),
    JoinReply(member_id="m", generation_id=7, leader_id="m", assignment=b""),
    JoinReply(member_id="m", generation_id=7, leader_id="m", assignment=b"\xfb\xff"),
    SyncReply(generation_id=7, protocol_type="worker", protocol_name="range", assignment=b"\xfb\xff", fencing_token=3),
    SyncReply(protocol_type=ODD_TEXT, protocol_name=ODD_TEXT),
    SyncReply(),
    HeartbeatReply(generation_id=7, state=ODD_TEXT),
    CommitReply(),
    CommitReply(
        partitions=(PartitionResult(ODD_TEXT, 0, ErrorCode.OFFSET_METADATA_TOO_LARGE), PartitionResult("t", 3))
    ),
]


@pytest.mark.parametrize("reply", REPLIES)
def test_an_answer_that_is_written_out_is_what_its_shape_says(reply: Reply) -> None:
    document = {**encode_reply(reply), "revision": 41, "epoch": 3}

    assert render_answer(Answer(reply, 41, 3)) == Rendered(200, JSON_HEADERS, dump_document(document))


@pytest.mark.parametrize("reply", [JoinReply(pending=True, member_id=ODD_TEXT), SyncReply(pending=True)])
def test_an_answer_that_is_pending_says_so(reply: Reply) -> None:
    rendered = render_answer(Answer(reply, 41, 3))

    assert rendered.status == 202
    assert rendered.body == dump_document({**encode_reply(reply), "revision": 41, "epoch": 3})
