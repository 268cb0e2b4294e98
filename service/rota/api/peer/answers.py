"""The owner's answers to calls that a peer has forwarded: as they go back to it, and as it reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rota.protocol.calls import REPLY_OF
from rota.protocol.messages import Request
from rota.replica.forwarding import as_moved
from rota.replica.ports import Answer
from rota.wire.envelopes import MalformedEnvelope, Packed, pack, pack_answers, unpack_answer, unpack_answers


def packed(answer: Answer) -> bytes:
    """The bytes of one answer."""
    return pack(_packed(answer))


def packed_answers(answers: Sequence[Answer]) -> bytes:
    """The answers to heartbeats, in the order of the heartbeats."""
    return pack_answers([_packed(answer) for answer in answers])


def read_answer(request: Request, data: bytes) -> Answer:
    """The peer's answer to this request; raises `MalformedEnvelope` for what no replica sends."""
    return _answer(unpack_answer(request, data))


def read_answers(data: bytes) -> list[Answer]:
    """The peer's answers to heartbeats; raises `MalformedEnvelope` for what no replica sends."""
    return [_answer(each) for each in unpack_answers(data)]


def check_kind(request: Request, answer: Answer) -> None:
    """Raise `MalformedEnvelope` if this is a reply to a request of another kind."""
    if type(answer.reply) is not REPLY_OF[type(request)]:
        raise MalformedEnvelope(f"a {type(answer.reply).__name__} to a {type(request).__name__}")


def _packed(answer: Answer) -> Packed[Any]:
    moved = as_moved(answer)
    return Packed(moved.reply, moved.revision, moved.epoch, moved.owner, moved.shards)


def _answer(given: Packed[Any]) -> Answer:
    return Answer(given.reply, given.revision, given.epoch, given.owner, given.shards)
