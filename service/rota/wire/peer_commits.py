"""Commits, and their answers, in messages between the workers of one machine: JSON lists, as of heartbeats.

Both ends are of one release. An administrator's commit, which has an author, travels as any other request does.
"""

from __future__ import annotations

import json
from types import NoneType

from rota.protocol.errors import ErrorCode
from rota.protocol.messages import CommitOffsets, CommitReply, OffsetToCommit, PartitionResult
from rota.wire.documents import json_writer
from rota.wire.envelopes import MalformedEnvelope, checked

_COMMIT = (str, str, int, str, (str, NoneType), str, list)
_OFFSET = (str, int, int, (int, NoneType), str, (int, NoneType), (int, NoneType))
_ANSWER = (int, int, str, str, str, list)
_RESULT = (str, int, str)
_write = json_writer(compact=True, ascii_only=True)


def pack_commit(request: CommitOffsets) -> bytes:
    """One without `act`."""
    named = (request.namespace, request.group_id, request.generation_id, request.member_id, request.group_instance_id)
    offsets = [
        (
            each.topic,
            each.partition,
            each.offset,
            each.leader_epoch,
            each.metadata,
            each.retention_time_ms,
            each.topic_id,
        )
        for each in request.offsets
    ]
    return _write((*named, request.subject, offsets)).encode()


def unpack_commit(data: bytes) -> CommitOffsets:
    """Raises `MalformedEnvelope` for what no worker sends."""
    try:
        namespace, group_id, generation_id, member_id, instance_id, subject, given = checked(json.loads(data), _COMMIT)
        offsets = tuple([OffsetToCommit(*checked(each, _OFFSET)) for each in given])
        return CommitOffsets(
            namespace, group_id, generation_id, offsets, member_id, group_instance_id=instance_id, subject=subject
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise MalformedEnvelope(f"not a commit: {type(error).__name__}") from error


def pack_commit_answer(reply: CommitReply, revision: int, epoch: int, owner: str) -> bytes:
    """The reply, with the revision, epoch and owner that travel beside it."""
    results = [(each.topic, each.partition, each.error) for each in reply.partitions]
    return _write((revision, epoch, owner, reply.error, reply.detail, results)).encode()


def unpack_commit_answer(data: bytes) -> tuple[CommitReply, int, int, str]:
    """The same; raises `MalformedEnvelope` for what no worker sends."""
    try:
        revision, epoch, owner, code, detail, given = checked(json.loads(data), _ANSWER)
        results = tuple(
            [PartitionResult(topic, n, ErrorCode(c)) for topic, n, c in (checked(r, _RESULT) for r in given)]
        )
        return CommitReply(ErrorCode(code), detail, results), revision, epoch, owner
    except (TypeError, ValueError, RecursionError) as error:
        raise MalformedEnvelope(f"not a reply to a commit: {type(error).__name__}") from error
