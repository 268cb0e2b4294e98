"""The heartbeats of many members in protobuf: read and written field by field, as there may be 10,000 in a message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rota.protocol.errors import ErrorCode
from rota.protocol.ids import check_group_id, check_instance_id, check_member_id, check_namespace
from rota.protocol.limits import Limits
from rota.protocol.messages import (
    NO_GENERATION,
    HeartbeatError,
    HeartbeatMany,
    HeartbeatManyReply,
    MemberHeartbeat,
)
from rota.v1.coordinator_pb2 import (
    GroupHeartbeat,
    HeartbeatManyRequest,
)
from rota.wire.replies import MalformedReply, Received
from rota.wire.shapes import invalid, too_large

MAX_HEARTBEATS = 10_000
"""Heartbeats of one message, where no single group may have more members."""


def check_size(message: HeartbeatManyRequest, limits: Limits) -> None:
    """Bound the heartbeats of one message, in each group and in all of them: each is answered at once."""
    if len(message.groups) > limits.group_max_size:
        raise too_large(f"groups must have at most {limits.group_max_size} items")
    sizes = [len(group.members) for group in message.groups]
    if max(sizes, default=0) > limits.group_max_size:
        raise too_large(f"members must have at most {limits.group_max_size} items")
    if sum(sizes) > max(MAX_HEARTBEATS, limits.group_max_size):
        raise too_large(f"all groups together must have at most {MAX_HEARTBEATS} members: send several messages")


def read_group(group: GroupHeartbeat) -> HeartbeatMany:
    """The heartbeats of one group; `RejectedRequest` if any of them is wrong."""
    check_namespace(group.namespace)
    check_group_id(group.group_id)
    return HeartbeatMany(group.namespace, group.group_id, tuple([_read_member(member) for member in group.members]))


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


def _read_member(member: Any) -> MemberHeartbeat:
    member_id, generation_id = member.member_id, member.generation_id
    check_member_id(member_id)
    if generation_id < NO_GENERATION:
        raise invalid(f"generation_id must be at least {NO_GENERATION}")
    if not member.HasField("group_instance_id"):
        return MemberHeartbeat(member_id, generation_id)
    check_instance_id(member.group_instance_id)
    return MemberHeartbeat(member_id, generation_id, member.group_instance_id)
