"""The heartbeats of many members in protobuf. The groups of a message are read one by one: there may be 10,000."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from rota.protocol.limits import Limits
from rota.protocol.messages import HeartbeatMany, HeartbeatManyReply
from rota.protocol.wire.protobuf import Twin
from rota.protocol.wire.replies import MalformedReply, Received
from rota.protocol.wire.routes import decode_path
from rota.protocol.wire.shapes import Shape, entries_of, too_large
from rota.v1.coordinator_pb2 import GroupHeartbeat, GroupHeartbeatResult, HeartbeatManyRequest

MAX_HEARTBEATS = 10_000
"""Heartbeats of one message, where no single group may have more members."""
_GROUP = Shape(HeartbeatMany, closed=True, path=("namespace", "group_id"))
_GROUP_TWIN = Twin(_GROUP.entries, GroupHeartbeat.DESCRIPTOR)
_RESULT_TWIN = Twin(entries_of(HeartbeatManyReply), GroupHeartbeatResult.DESCRIPTOR)


def check_size(message: HeartbeatManyRequest, limits: Limits) -> None:
    """Bound the groups of one message, and the heartbeats of all of them: each is answered at once."""
    if len(message.groups) > limits.group_max_size:
        raise too_large(f"groups must have at most {limits.group_max_size} items")
    if sum(len(group.members) for group in message.groups) > max(MAX_HEARTBEATS, limits.group_max_size):
        raise too_large(f"all groups together must have at most {MAX_HEARTBEATS} members: send several messages")


def read_group(group: GroupHeartbeat, limits: Limits) -> HeartbeatMany:
    """The heartbeats of one group; `RejectedRequest` if any of them is wrong."""
    names = decode_path({"namespace": group.namespace, "group_id": group.group_id})
    read: HeartbeatMany = _GROUP.decode(_GROUP_TWIN.document(group, limits), limits, **names)
    return read


def write_many(requests: Iterable[HeartbeatMany]) -> HeartbeatManyRequest:
    message = HeartbeatManyRequest()
    for request in requests:
        _GROUP_TWIN.fill(message.groups.add(namespace=request.namespace, group_id=request.group_id), request)
    return message


def write_result(result: Any, reply: HeartbeatManyReply, revision: int, epoch: int) -> None:
    """Fill a `GroupHeartbeatResult`."""
    result.revision, result.epoch = revision, epoch
    _RESULT_TWIN.fill(result, reply)


def read_results(results: Sequence[Any]) -> list[Received]:
    """One reply for each group; `MalformedReply` for a code that we do not know."""
    return [Received(_read_result(result), result.revision, result.epoch) for result in results]


def _read_result(result: Any) -> HeartbeatManyReply:
    try:
        return msgspec.convert(_RESULT_TWIN.document(result, Limits()), HeartbeatManyReply)
    except msgspec.ValidationError as error:
        raise MalformedReply(str(error)) from None
