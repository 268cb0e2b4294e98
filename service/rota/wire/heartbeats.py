"""Heartbeats in protobuf, the hot path: read and written without the detour over documents.

Plainly well-formed input takes the fast path; all other input goes to the shape, which names its error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.ids import check_group_id, check_instance_id, check_member_id, check_namespace
from rota.protocol.limits import MAX_WAIT_MS, Limits
from rota.protocol.messages import (
    NO_GENERATION,
    Heartbeat,
    HeartbeatError,
    HeartbeatMany,
    HeartbeatManyReply,
    HeartbeatReply,
    MemberHeartbeat,
)
from rota.v1.coordinator_pb2 import (
    GroupHeartbeat,
    HeartbeatManyRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    SessionRequest,
)
from rota.wire.batching import read_varint
from rota.wire.protobuf import parse
from rota.wire.replies import MalformedReply, Received
from rota.wire.rpcs import RPCS
from rota.wire.shapes import invalid, too_large

_RPC = RPCS[Heartbeat]
MAX_REMEMBERED = 10_000
"""Groups of one stream."""
MAX_SIZE_REMEMBERED = 8 * 1024 * 1024
"""Of the groups of one stream: their bytes, and `SIZE_OF_A_MEMBER` for each heartbeat in them. It goes beyond by one
message."""
SIZE_OF_A_MEMBER = 128
"""What a heartbeat takes in memory beside its bytes."""
MAX_REMEMBERED_BYTES = 1024 * 1024
"""A message of one stream that is larger is read again each time."""
MAX_HEARTBEATS = 10_000
"""Heartbeats of one message, where no single group may have more members."""
_TAG_OF_CALL = bytes([SessionRequest.CALL_FIELD_NUMBER << 3])
_TAG_OF_HEARTBEATS = bytes([SessionRequest.HEARTBEAT_FIELD_NUMBER << 3 | 2])
_SIZES_OF_A_CALL = range(2, 6)
"""A tag and a number of up to four bytes."""


def parse_heartbeat(data: bytes, limits: Limits) -> Heartbeat:
    """One member's; `RejectedRequest` as the shape says."""
    message = parse(HeartbeatRequest, data)
    if message.HasField("group_instance_id") or message.generation_id < NO_GENERATION or message.wait_ms < 0:
        heartbeat: Heartbeat = _RPC.read_request(message, limits)
        return heartbeat
    namespace, group_id, member_id = message.namespace, message.group_id, message.member_id
    check_namespace(namespace)
    check_group_id(group_id)
    check_member_id(member_id)
    return Heartbeat(namespace, group_id, member_id, message.generation_id, None, min(message.wait_ms, MAX_WAIT_MS))


def dump_heartbeat_reply(reply: HeartbeatReply, revision: int, epoch: int) -> bytes:
    """A reply without an error."""
    return HeartbeatResponse(
        generation_id=reply.generation_id,
        state=reply.state,
        waited_ms=reply.waited_ms,
        revision=revision,
        epoch=epoch,
    ).SerializeToString()


def check_size(message: HeartbeatManyRequest, limits: Limits) -> None:
    """Bound the heartbeats of one message, in each group and in all of them: each is answered at once."""
    if len(message.groups) > limits.group_max_size:
        raise too_large(f"groups must have at most {limits.group_max_size} items")
    sizes = [len(group.members) for group in message.groups]
    if max(sizes, default=0) > limits.group_max_size:
        raise too_large(f"members must have at most {limits.group_max_size} items")
    if sum(sizes) > max(MAX_HEARTBEATS, limits.group_max_size):
        raise too_large(f"all groups together must have at most {MAX_HEARTBEATS} members: send several messages")


def read_many(message: HeartbeatManyRequest, limits: Limits) -> list[HeartbeatMany]:
    """One request for each group; `RejectedRequest` if any of them is wrong."""
    check_size(message, limits)
    return [_read_group(group) for group in message.groups]


class HeartbeatReader:
    """Reads what one stream says. A group with the same bytes as last time, the usual case, is not parsed again.

    Nor is a whole message with the same heartbeats as the last one: only the number of its call is read.
    """

    __slots__ = ("_last", "_last_read", "_latest", "_limits", "_said", "_size")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._said: dict[tuple[str, str], tuple[bytes, HeartbeatMany]] = {}
        self._size = 0
        self._latest: list[HeartbeatMany] | None = None
        """What the last `read` has read, until `remember`."""
        self._last = b""
        """The bytes of a message behind its call, empty where none is remembered."""
        self._last_read: list[HeartbeatMany] = []

    def read(self, message: HeartbeatManyRequest) -> list[HeartbeatMany]:
        """As `read_many`."""
        self.begin(message)
        return self.read_part(message.groups)

    def begin(self, message: HeartbeatManyRequest) -> None:
        """Begin to read a message part by part, see `read_part`; `RejectedRequest` if it is too large."""
        check_size(message, self._limits)
        self._latest = None
        if len(message.groups) > MAX_REMEMBERED:
            return
        if len(self._said) > MAX_REMEMBERED or self._size > MAX_SIZE_REMEMBERED:
            self._said.clear()
            self._size = 0
        self._latest = []

    def read_part(self, groups: Iterable[GroupHeartbeat]) -> list[HeartbeatMany]:
        """One request for each of the next groups of the message; `RejectedRequest` if any of them is wrong."""
        if self._latest is None:
            return [_read_group(group) for group in groups]
        try:
            requests = [self._read(group) for group in groups]
        except RejectedRequest:
            self._latest = None
            raise
        self._latest = self._latest + requests if self._latest else requests
        return requests

    def remember(self, data: bytes) -> None:
        """The bytes of the `SessionRequest` that the last `read` was of, or of any other message of the stream."""
        latest, self._latest = self._latest, None
        if latest is not None and len(data) <= MAX_REMEMBERED_BYTES and (begin := _begin_of_heartbeats(data)):
            self._last, self._last_read = data[begin:], latest

    def repeated(self, data: bytes) -> tuple[int, list[HeartbeatMany]] | None:
        """The call of a `SessionRequest` and what `read` has returned for these heartbeats; None for any other bytes.

        The list is the same each time.
        """
        last = self._last
        if not last or len(data) - len(last) not in _SIZES_OF_A_CALL or not data.endswith(last):
            return None
        call, begin = _call_of(data)
        return (call, self._last_read) if call and len(data) - begin == len(last) else None

    def _read(self, group: GroupHeartbeat) -> HeartbeatMany:
        key, said = (group.namespace, group.group_id), group.SerializeToString()
        known = self._said.get(key)
        if known is not None and known[0] == said:
            return known[1]
        request = _read_group(group)
        self._size += _size(said, request) - (_size(*known) if known is not None else 0)
        self._said[key] = (said, request)
        return request


def are_heartbeats(data: bytes) -> bool:
    """Whether a `SessionRequest` has heartbeats and nothing else, as clients write it. It is not parsed."""
    return _begin_of_heartbeats(data) > 0


def write_many(requests: Iterable[HeartbeatMany]) -> HeartbeatManyRequest:
    message = HeartbeatManyRequest()
    for request in requests:
        group = message.groups.add(namespace=request.namespace, group_id=request.group_id)
        for beat in request.members:
            group.members.add(
                member_id=beat.member_id, generation_id=beat.generation_id, group_instance_id=beat.group_instance_id
            )
    return message


def write_result(result: Any, reply: HeartbeatManyReply, revision: int, epoch: int) -> None:
    """Fill a `GroupHeartbeatResult`."""
    result.error = reply.error.value
    result.generation_id = reply.generation_id
    result.revision = revision
    result.epoch = epoch
    # Setting an empty field costs as much as setting another one.
    if reply.state:
        result.state = reply.state
    if reply.detail:
        result.detail = reply.detail
    for error in reply.errors:
        result.errors.add(member_id=error.member_id, error=error.error.value, detail=error.detail)


def refuse_all(results: Any, groups: int, rejected: RejectedRequest) -> None:
    """Fill as many `GroupHeartbeatResult`s, all alike: of a message that is not read, for it would be refused."""
    for _ in range(groups):
        results.add(error=rejected.code.value, detail=rejected.detail)


def read_results(results: Sequence[Any]) -> list[Received]:
    """One reply for each group; `MalformedReply` for a code that we do not know."""
    return [Received(_read_result(result), result.revision, result.epoch) for result in results]


def _read_result(result: Any) -> HeartbeatManyReply:
    try:
        return HeartbeatManyReply(
            ErrorCode(result.error),
            result.detail,
            result.generation_id,
            result.state,
            tuple(HeartbeatError(each.member_id, ErrorCode(each.error), each.detail) for each in result.errors),
        )
    except ValueError:
        raise MalformedReply("error must be an error code") from None


def _call_of(data: bytes) -> tuple[int, int]:
    """The call at the beginning of a `SessionRequest`, and where it ends; 0 where another field, or a long one, is."""
    return read_varint(data, 1) if data[:1] == _TAG_OF_CALL else (0, 0)


def _begin_of_heartbeats(data: bytes) -> int:
    """Where a `SessionRequest` goes on behind its call, if it has heartbeats there and nothing else; 0 otherwise."""
    call, begin = _call_of(data)
    if not call or data[begin : begin + 1] != _TAG_OF_HEARTBEATS:
        return 0
    length, at = read_varint(data, begin + 1)
    return begin if length and at + length == len(data) else 0


def _read_group(group: GroupHeartbeat) -> HeartbeatMany:
    check_namespace(group.namespace)
    check_group_id(group.group_id)
    return HeartbeatMany(group.namespace, group.group_id, tuple([_read_member(member) for member in group.members]))


def _read_member(member: Any) -> MemberHeartbeat:
    member_id, generation_id = member.member_id, member.generation_id
    check_member_id(member_id)
    if generation_id < NO_GENERATION:
        raise invalid(f"generation_id must be at least {NO_GENERATION}")
    if not member.HasField("group_instance_id"):
        return MemberHeartbeat(member_id, generation_id)
    check_instance_id(member.group_instance_id)
    return MemberHeartbeat(member_id, generation_id, member.group_instance_id)


def _size(said: bytes, request: HeartbeatMany) -> int:
    """See `MAX_SIZE_REMEMBERED`."""
    return len(said) + SIZE_OF_A_MEMBER * len(request.members)
