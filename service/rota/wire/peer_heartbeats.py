"""Many heartbeats, and what came of them, in one message between replicas: JSON lists, the hot path of forwarding."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    Heartbeat,
    HeartbeatError,
    HeartbeatMany,
    HeartbeatManyReply,
    HeartbeatReply,
    MemberHeartbeat,
)
from rota.wire.envelopes import MalformedEnvelope, whole

AnyHeartbeat = Heartbeat | HeartbeatMany
PackedAnswer = tuple[HeartbeatReply | HeartbeatManyReply, int, int, str]
"""A reply, and the revision, epoch and owner that travel beside it."""

_BESIDE = (int, int, str)
_ONE = (str, str, str, int, str | None)
_SEVERAL = (str, str, list)
_MEMBER = (str, int, str | None)
_REPLY = (str, str, int, str)
_ERROR = (str, str, str)


def pack_heartbeats(requests: Sequence[AnyHeartbeat]) -> bytes:
    """Each becomes a list: five entries for one member, three for several, and the caller. Waits are left out."""
    return json.dumps([_request(request) for request in requests]).encode()


def unpack_heartbeats(data: bytes) -> list[AnyHeartbeat]:
    """Raises `MalformedEnvelope` for what no replica sends."""
    try:
        return [_read_request(each) for each in _list(json.loads(data))]
    except (TypeError, ValueError, RecursionError) as error:
        raise MalformedEnvelope(f"not heartbeats: {type(error).__name__}") from error


def pack_answers(answers: Sequence[PackedAnswer]) -> bytes:
    """In the order of the requests."""
    return json.dumps([_pack_answer(*each) for each in answers]).encode()


def unpack_answers(data: bytes) -> list[PackedAnswer]:
    """Raises `MalformedEnvelope` for what no replica sends."""
    try:
        return [_read_answer(each) for each in _list(json.loads(data))]
    except (TypeError, ValueError, RecursionError) as error:
        raise MalformedEnvelope(f"not replies to heartbeats: {type(error).__name__}") from error


def _request(request: AnyHeartbeat) -> list[Any]:
    if isinstance(request, Heartbeat):
        named = (request.member_id, request.generation_id, request.group_instance_id)
        return [request.namespace, request.group_id, *named, *_caller(request)]
    members = [[each.member_id, each.generation_id, each.group_instance_id] for each in request.members]
    return [request.namespace, request.group_id, members, *_caller(request)]


def _caller(request: AnyHeartbeat) -> list[str]:
    """The last entry, where callers are checked: a peer of an earlier release does not read it."""
    return [request.subject] if request.subject else []


def _read_request(given: list[Any]) -> AnyHeartbeat:
    size = len(_ONE) if len(given) >= len(_ONE) else len(_SEVERAL)
    subject = _checked(given[size:], (str,))[0] if len(given) > size else ""
    if size == len(_ONE):
        one = Heartbeat(*_checked(given[:size], _ONE))
        return replace(one, subject=subject) if subject else one
    namespace, group_id, members = _checked(given[:size], _SEVERAL)
    beats = tuple([MemberHeartbeat(*_checked(each, _MEMBER)) for each in members])
    return HeartbeatMany(namespace, group_id, beats, subject)


def _pack_answer(reply: HeartbeatReply | HeartbeatManyReply, revision: int, epoch: int, owner: str) -> list[Any]:
    answers = [revision, epoch, owner, reply.error, reply.detail, reply.generation_id, reply.state]
    if isinstance(reply, HeartbeatManyReply):
        answers.append([[each.member_id, each.error, each.detail] for each in reply.errors])
    return answers


def _read_answer(given: list[Any]) -> PackedAnswer:
    revision, epoch, owner = _checked(given[:3], _BESIDE)
    code, detail, generation_id, state = _checked(given[3:7], _REPLY)
    error = ErrorCode(code)
    if len(given) == 7:
        return HeartbeatReply(error, detail, generation_id, state), revision, epoch, owner
    (errors,) = _checked(given[7:], (list,))
    each = [HeartbeatError(m, ErrorCode(c), d) for m, c, d in (_checked(one, _ERROR) for one in errors)]
    return HeartbeatManyReply(error, detail, generation_id, state, tuple(each)), revision, epoch, owner


def _list(given: Any) -> list[Any]:
    if type(given) is not list:
        raise TypeError("not what a replica sends")
    return given


def _checked(given: list[Any], kinds: tuple[Any, ...]) -> list[Any]:
    """The entries, if there are so many and of these types."""
    if len(_list(given)) != len(kinds) or not all(map(isinstance, given, kinds)):
        raise TypeError("not what a replica sends")
    for each in given:
        if isinstance(each, str):
            whole(each)
    return given
