"""Commits in JSON, the hot path: plainly well-formed input is read by its fields, without the records around them.

All other input is None here, and goes to the shape, which names its error.
"""

from __future__ import annotations

from typing import Any

from rota.protocol.errors import RejectedRequest
from rota.protocol.limits import Limits
from rota.protocol.messages import CommitOffsets, OffsetToCommit
from rota.wire.requests import GENERATION_ID, MEMBER_ID, OFFSET, PARTITION, TOPIC


def read_plain_commit(document: dict[str, Any], namespace: str, group_id: str, limits: Limits) -> CommitOffsets | None:
    """A commit of one dynamic member, of offsets with nothing beside them, as most are."""
    offsets = document.get("offsets")
    if len(document) != 3 or type(offsets) is not list or len(offsets) > limits.max_partitions_per_request:
        return None
    try:
        member_id = MEMBER_ID.decode(document.get("member_id"), limits)
        generation_id = GENERATION_ID.decode(document.get("generation_id"), limits)
        plain = tuple([_plain_offset(each, limits) for each in offsets])
    except RejectedRequest:
        return None
    return None if None in plain else CommitOffsets(namespace, group_id, generation_id, plain, member_id)  # type: ignore[arg-type]


def _plain_offset(value: Any, limits: Limits) -> OffsetToCommit | None:
    if type(value) is not dict or len(value) != 3:
        return None
    topic = TOPIC.decode(value.get("topic"), limits)
    partition = PARTITION.decode(value.get("partition"), limits)
    return OffsetToCommit(topic, partition, OFFSET.decode(value.get("offset"), limits))
