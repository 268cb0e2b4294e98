"""Commits in JSON, the hot path: plainly well-formed input is read by its fields, without the records around them.

All other input is None here, and goes to the shape, which names its error.
"""

from __future__ import annotations

from typing import Any

from rota.protocol.errors import RejectedRequest
from rota.protocol.ids import check_member_id, check_topic
from rota.protocol.limits import MAX_SAFE_INTEGER, Limits
from rota.protocol.messages import NO_GENERATION, CommitOffsets, OffsetToCommit
from rota.wire.fields import INT32_MAX
from rota.wire.requests import OFFSET


def read_plain_commit(document: dict[str, Any], namespace: str, group_id: str, limits: Limits) -> CommitOffsets | None:
    """A commit of one dynamic member, of offsets with nothing beside them but the topic's id, as most are."""
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
            if type(each) is not dict:
                return None
            topic, partition, topic_id = each.get("topic"), each.get("partition"), each.get("topic_id")
            if len(each) != (3 if topic_id is None else 4) or type(topic) is not str or type(partition) is not int:
                return None
            if not 0 <= partition <= INT32_MAX:
                return None
            if topic_id is not None and (type(topic_id) is not int or not 0 <= topic_id <= MAX_SAFE_INTEGER):
                return None
            check_topic(topic)
            offset = OFFSET.decode(each.get("offset"), limits)
            plain.append(OffsetToCommit(topic, partition, offset, topic_id=topic_id))
    except RejectedRequest:
        return None
    return CommitOffsets(namespace, group_id, generation_id, tuple(plain), member_id)
