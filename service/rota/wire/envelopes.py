"""Requests, answers and journal events between replicas: the messages' own fields in MessagePack, nothing added.

Replicas of one release talk to each other, so the form follows the structs. A field that a peer of another release does
not know is dropped, and one that it does not send keeps its default. What comes in is checked by type as it is decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from rota.protocol.calls import REPLY_OF
from rota.protocol.messages import Heartbeat, HeartbeatMany, HeartbeatManyReply, HeartbeatReply, Reply, Request
from rota.protocol.values import Int64

Kind = TypeVar("Kind")
R = TypeVar("R")


class MalformedEnvelope(ValueError):
    """Bytes that no replica sends."""


class _Named(Struct, array_like=True, frozen=True):
    """A request, with the name of its type."""

    name: str
    request: msgspec.Raw


class Packed(Struct, Generic[R], array_like=True, frozen=True):
    """A reply, and what travels beside it."""

    reply: R
    revision: Int64
    epoch: Int64
    owner: str
    shards: tuple[Int64, ...] = ()


class _Beat(Struct, array_like=True, frozen=True):
    """A heartbeat of one member, or of several."""

    one: Heartbeat | None
    many: HeartbeatMany | None


class _BeatReply(Struct, array_like=True, frozen=True):
    one: HeartbeatReply | None
    many: HeartbeatManyReply | None


_REQUESTS: dict[str, type] = {kind.__name__: kind for kind in REPLY_OF}
_encode = msgspec.msgpack.Encoder().encode


def pack(value: Any) -> bytes:
    """A value that `unpack` reads by its type."""
    return _encode(value)


def unpack(kind: type[Kind], data: bytes) -> Kind:
    """The value of this type; raises `MalformedEnvelope`."""
    try:
        value: Kind = _decoder(kind).decode(data)  # type: ignore[arg-type]
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MalformedEnvelope(f"not what a replica sends: {type(error).__name__}") from error
    return value


@cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)


def pack_request(request: Request) -> bytes:
    return _encode(_Named(type(request).__name__, msgspec.Raw(_encode(request))))


def unpack_request(data: bytes) -> Any:
    """Raises `MalformedEnvelope`."""
    named = unpack(_Named, data)
    if named.name not in _REQUESTS:
        raise MalformedEnvelope("not an envelope of a request")
    return unpack(_REQUESTS[named.name], bytes(named.request))


def unpack_answer(request: Request, data: bytes) -> Packed[Reply]:
    """The answer to this request; raises `MalformedEnvelope`."""
    kind: Any = Packed[REPLY_OF[type(request)]]  # type: ignore[misc]
    answer: Packed[Reply] = unpack(kind, data)
    return answer


def pack_heartbeats(requests: Sequence[Heartbeat | HeartbeatMany]) -> bytes:
    """Waits are left out: the replica that has the call parks it."""
    return _encode([_beat(each) for each in requests])


def _beat(request: Heartbeat | HeartbeatMany) -> _Beat:
    if isinstance(request, HeartbeatMany):
        return _Beat(None, request)
    return _Beat(replace(request, wait_ms=None) if request.wait_ms else request, None)


def unpack_heartbeats(data: bytes) -> list[Heartbeat | HeartbeatMany]:
    """Raises `MalformedEnvelope`."""
    return [_only(each.one, each.many) for each in unpack(list[_Beat], data)]


def pack_answers(answers: Sequence[Packed[Any]]) -> bytes:
    """Answers to heartbeats, in the order of the requests."""
    return _encode([replace(each, reply=_beat_reply(each.reply)) for each in answers])


def unpack_answers(data: bytes) -> list[Packed[HeartbeatReply | HeartbeatManyReply]]:
    """Raises `MalformedEnvelope`."""
    found = unpack(list[Packed[_BeatReply]], data)
    return [Packed(_only(each.reply.one, each.reply.many), each.revision, each.epoch, each.owner) for each in found]


def _beat_reply(reply: HeartbeatReply | HeartbeatManyReply) -> _BeatReply:
    return _BeatReply(reply, None) if isinstance(reply, HeartbeatReply) else _BeatReply(None, reply)


def _only(one: Any, many: Any) -> Any:
    found = one or many
    if found is None:
        raise MalformedEnvelope("neither a heartbeat nor heartbeats")
    return found
