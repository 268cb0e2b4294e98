"""The replies as they look in JSON, in both directions.

A reply whose `error` is not NONE is a problem document instead (`problems.py`); only replies without one
come here. Every document also carries `revision` and `epoch`, which belong to the answer around the reply.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from rota.protocol.calls import REPLY_OF
from rota.protocol.errors import RejectedRequest
from rota.protocol.messages import JoinReply, Reply, SyncReply
from rota.protocol.wire.shapes import Shape

OUTCOMES: dict[type, str] = {JoinReply: "joined", SyncReply: "synced"}
"""The first name of documents that are answers to joins and syncs is `outcome`."""
_PLACE: dict[str, Any] = {"revision": int, "epoch": int}
SHAPES: dict[type, Shape] = {
    reply: Shape(
        reply,
        closed=False,
        path=("error", "detail"),
        tail=_PLACE,
        outcome=OUTCOMES.get(reply),
    )
    for reply in sorted(set(REPLY_OF.values()), key=str)
}


class Pending(msgspec.Struct, kw_only=True, omit_defaults=True, tag_field="outcome", tag="pending"):
    """The answer to a join or a sync that is not over: the caller calls again."""

    member_id: str = ""
    revision: int = -1
    epoch: int = -1


class MalformedReply(ValueError):
    """A server's document that is no such reply: another version, or not Rota at all."""


@dataclass(frozen=True, slots=True)
class Received:
    """A reply as a client gets it, with the place in the shard's history that it reflects."""

    reply: Reply
    revision: int = 0
    epoch: int = 0
    retry_after_ms: int = 0
    """How long its sender asks to be left alone; 0 where it does not say."""


def write_reply(reply: Any, revision: int, epoch: int) -> bytes:
    """The JSON text of a reply without an error. `outcome` says whether a join or sync is done or pending."""
    if type(reply) in OUTCOMES and reply.pending:
        member_id = reply.member_id if isinstance(reply, JoinReply) else ""
        return msgspec.json.encode(Pending(member_id=member_id, revision=revision, epoch=epoch))
    return SHAPES[type(reply)].write(reply, revision, epoch)


def encode_reply(reply: Reply) -> dict[str, Any]:
    """The document of a reply, without its place in the journal."""
    document: dict[str, Any] = msgspec.json.decode(write_reply(reply, 0, 0))
    del document["revision"], document["epoch"]
    return document


def decode_reply(reply_type: type[Reply], document: dict[str, Any]) -> Received:
    """The reverse of `write_reply`, for the SDK; `MalformedReply` if the document is no such reply."""
    try:
        if document.get("outcome") == "pending" and reply_type in OUTCOMES:
            pending = msgspec.convert(document, Pending)
            joining = JoinReply(pending=True, member_id=pending.member_id)
            waiting = joining if reply_type is JoinReply else SyncReply(pending=True)
            return Received(waiting, pending.revision, pending.epoch)
        values, reply = SHAPES[reply_type].open(document)
    except (msgspec.ValidationError, RejectedRequest) as error:
        raise MalformedReply(str(error)) from None
    return Received(reply, values.revision, values.epoch)
