"""The owner's answers to calls that a peer has forwarded: as they go back to it, and as it reads them."""

from __future__ import annotations

from collections.abc import Sequence

from rota.protocol.messages import REPLY_OF, CommitReply, HeartbeatManyReply, HeartbeatReply, Request
from rota.replica.forwarding import as_moved
from rota.replica.ports import Answer
from rota.wire.envelopes import MalformedEnvelope, checked, unpack
from rota.wire.peer_commits import pack_commit_answer
from rota.wire.peer_heartbeats import PackedAnswer, pack_answers


def packed(answers: Sequence[Answer]) -> bytes:
    """In their order."""
    return pack_answers([_packed(as_moved(answer)) for answer in answers])


def packed_commit(answer: Answer) -> bytes:
    """The one to a commit."""
    answer = as_moved(answer)
    assert isinstance(answer.reply, CommitReply)
    return pack_commit_answer(answer.reply, answer.revision, answer.epoch, answer.owner)


def read_answer(request: Request, data: bytes) -> Answer:
    """The peer's answer to this request; raises `MalformedEnvelope` for what no replica sends."""
    reply, beside = unpack(data)
    shards = beside.get("shards") or []
    try:
        checked([beside.get(name) for name in ("revision", "epoch", "owner")], (int, int, str))
        checked(shards, (int,) * len(shards))
    except (TypeError, ValueError) as error:
        raise MalformedEnvelope("not an answer") from error
    answer = Answer(reply, beside["revision"], beside["epoch"], beside["owner"], tuple(shards))
    check_kind(request, answer)
    return answer


def check_kind(request: Request, answer: Answer) -> None:
    """Raise `MalformedEnvelope` if this is a reply to a request of another kind."""
    if type(answer.reply) is not REPLY_OF[type(request)]:
        raise MalformedEnvelope(f"a {type(answer.reply).__name__} to a {type(request).__name__}")


def _packed(answer: Answer) -> PackedAnswer:
    assert isinstance(answer.reply, HeartbeatReply | HeartbeatManyReply)
    return answer.reply, answer.revision, answer.epoch, answer.owner
