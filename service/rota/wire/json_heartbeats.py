"""Heartbeats in JSON, the hot path: plainly well-formed input is parsed without the shapes.

All other input is None here, and goes to the shape, which names its error.
"""

from __future__ import annotations

from typing import Any

from rota.protocol.errors import RejectedRequest
from rota.protocol.ids import check_member_id
from rota.protocol.limits import Limits
from rota.protocol.messages import NO_GENERATION, Heartbeat, MemberHeartbeat
from rota.wire.fields import INT32_MAX


def read_plain(document: dict[str, Any], namespace: str, group_id: str) -> Heartbeat | None:
    """A heartbeat of one dynamic member that does not wait, as most are."""
    if not _is_plain(document):
        return None
    return Heartbeat(namespace, group_id, document["member_id"], document["generation_id"], None, 0)


def read_plain_members(document: dict[str, Any], limits: Limits) -> tuple[MemberHeartbeat, ...] | None:
    """Those of several dynamic members, in a message without a wait."""
    members = document.get("members")
    if len(document) != 1 or type(members) is not list or len(members) > limits.group_max_size:
        return None
    if not all(map(_is_plain, members)):
        return None
    return tuple([MemberHeartbeat(member["member_id"], member["generation_id"]) for member in members])


def _is_plain(value: Any) -> bool:
    """Whether it has a member id and a generation, both of which the shape would accept, and nothing else."""
    if type(value) is not dict or len(value) != 2:
        return False
    member_id, generation_id = value.get("member_id"), value.get("generation_id")
    if type(member_id) is not str or type(generation_id) is not int or not NO_GENERATION <= generation_id <= INT32_MAX:
        return False
    try:
        check_member_id(member_id)
    except RejectedRequest:
        return False
    return True
