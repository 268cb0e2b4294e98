"""Many heartbeats, and what came of them, in one message between replicas: JSON lists."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any, TypeVar

from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    Heartbeat,
    HeartbeatError,
    HeartbeatMany,
    HeartbeatManyReply,
    HeartbeatReply,
    MemberHeartbeat,
)
from rota.wire.envelopes import MalformedEnvelope, bounded, checked, list_of, whole

AnyHeartbeat = Heartbeat | HeartbeatMany
PackedAnswer = tuple[HeartbeatReply | HeartbeatManyReply, int, int, str]
"""A reply, and the revision, epoch and owner that travel beside it."""
Built = TypeVar("Built")
Build = Callable[[HeartbeatReply | HeartbeatManyReply, int, int, str], Built]
"""Makes an answer of the same."""

_SEVERAL = (str, str, list)
_MEMBER = (str, int, (str, NoneType))
_ERROR = (str, str, str)
_FIELDS_OF_ONE, _FIELDS_OF_AN_ANSWER = 5, 7


def pack_heartbeats(requests: Sequence[AnyHeartbeat]) -> bytes:
    """Each becomes a list: five entries for one member, three for several, and the caller. Waits are left out."""
    return json.dumps([_request(each) for each in requests]).encode()


def unpack_heartbeats(data: bytes) -> list[AnyHeartbeat]:
    """Raises `MalformedEnvelope` for what no replica sends."""
    try:
        return [_read_request(each) for each in list_of(json.loads(data))]
    except (TypeError, ValueError, RecursionError) as error:
        raise MalformedEnvelope(f"not heartbeats: {type(error).__name__}") from error


def pack_answers(answers: Sequence[PackedAnswer]) -> bytes:
    """In the order of the requests."""
    return json.dumps([_pack_answer(*each) for each in answers]).encode()


def unpack_answers(data: bytes, build: Build[Built]) -> list[Built]:
    """What `build` makes of each; raises `MalformedEnvelope` for what no replica sends."""
    try:
        return [_read_any_answer(build, each) for each in list_of(json.loads(data))]
    except (TypeError, ValueError, RecursionError) as error:
        raise MalformedEnvelope(f"not replies to heartbeats: {type(error).__name__}") from error


# --- entries --------------------------------------------------------------------------------------------


def _request(request: AnyHeartbeat) -> list[Any]:
    if isinstance(request, Heartbeat):
        named = (request.member_id, request.generation_id, request.group_instance_id)
        return [request.namespace, request.group_id, *named, *_caller(request)]
    members = [[each.member_id, each.generation_id, each.group_instance_id] for each in request.members]
    return [request.namespace, request.group_id, members, *_caller(request)]


def _caller(request: AnyHeartbeat) -> list[str]:
    """The last entry, where callers are checked: a peer of an earlier release does not read it."""
    return [request.subject] if request.subject else []


def _read_request(given: Any) -> AnyHeartbeat:
    return _read_one(*given) if len(list_of(given)) >= _FIELDS_OF_ONE else _read_several(given)


def _read_one(
    namespace: str, group_id: str, member_id: str, generation_id: int, instance_id: str | None, subject: str = ""
) -> Heartbeat:
    _check_numbers(generation_id)
    _check_texts(namespace, group_id, member_id, "" if instance_id is None else instance_id, subject)
    return Heartbeat(namespace, group_id, member_id, generation_id, instance_id, subject=subject)


def _read_several(given: list[Any]) -> HeartbeatMany:
    size = len(_SEVERAL)
    subject = checked(given[size:], (str,))[0] if len(given) > size else ""
    namespace, group_id, members = checked(given[:size], _SEVERAL)
    beats = tuple([MemberHeartbeat(*checked(each, _MEMBER)) for each in members])
    return HeartbeatMany(namespace, group_id, beats, subject)


def _pack_answer(reply: HeartbeatReply | HeartbeatManyReply, revision: int, epoch: int, owner: str) -> list[Any]:
    answers = [revision, epoch, owner, reply.error, reply.detail, reply.generation_id, reply.state]
    if isinstance(reply, HeartbeatManyReply):
        answers.append([[each.member_id, each.error, each.detail] for each in reply.errors])
    return answers


def _read_any_answer(build: Build[Built], given: list[Any]) -> Built:
    is_one = len(list_of(given)) <= _FIELDS_OF_AN_ANSWER
    return _read_answer(build, *given) if is_one else _read_answer_to_several(build, given)


def _read_answer(
    build: Build[Built], revision: int, epoch: int, owner: str, code: str, detail: str, generation_id: int, state: str
) -> Built:
    _check_numbers(revision, epoch, generation_id)
    _check_texts(owner, detail, state)
    return build(HeartbeatReply(ErrorCode(code), detail, generation_id, state), revision, epoch, owner)


def _read_answer_to_several(build: Build[Built], given: list[Any]) -> Built:
    revision, epoch, owner, code, detail, generation_id, state, errors = given
    _check_numbers(revision, epoch, generation_id)
    _check_texts(owner, detail, state)
    each = [HeartbeatError(m, ErrorCode(c), d) for m, c, d in (checked(one, _ERROR) for one in list_of(errors))]
    reply = HeartbeatManyReply(ErrorCode(code), detail, generation_id, state, tuple(each))
    return build(reply, revision, epoch, owner)


def _check_numbers(*given: Any) -> None:
    for each in given:
        bounded(each)


def _check_texts(*given: Any) -> None:
    """Raises where one is no text, or half of a character."""
    text = "".join(given)
    if not text.isascii():
        for each in given:
            whole(each)
