"""Commits in JSON, the hot path: plainly well-formed input is read by its fields, without the records around them.

All other input is None here, and goes to the shape, which names its error.
"""

from __future__ import annotations

from typing import Any

from rota.protocol.errors import RejectedRequest
from rota.protocol.ids import check_member_id, check_topic
from rota.protocol.limits import Limits
from rota.protocol.messages import NO_GENERATION, CommitOffsets, OffsetToCommit
from rota.wire.fields import INT32_MAX, MAX_SAFE_INTEGER


def read_plain_commit(document: dict[str, Any], namespace: str, group_id: str, limits: Limits) -> CommitOffsets | None:
    """A commit of one dynamic member, of offsets with nothing beside them, as most are."""
    offsets = document.get("offsets")
    if len(document) != 3 or type(offsets) is not list or len(offsets) > limits.max_partitions_per_request:
        return None
    member_id, generation_id = document.get("member_id"), document.get("generation_id")
    if type(member_id) is not str or type(generation_id) is not int or not NO_GENERATION <= generation_id <= INT32_MAX:
        return None
    plain = []
    try:
        check_member_id(member_id)
        for each in offsets:
            if type(each) is not dict or len(each) != 3:
                return None
            topic, partition, offset = each.get("topic"), each.get("partition"), each.get("offset")
            if type(topic) is not str or type(partition) is not int or type(offset) is not int:
                return None
            if not (0 <= partition <= INT32_MAX and 0 <= offset <= MAX_SAFE_INTEGER):
                return None
            check_topic(topic)
            plain.append(OffsetToCommit(topic, partition, offset))
    except RejectedRequest:
        return None
    return CommitOffsets(namespace, group_id, generation_id, tuple(plain), member_id)
