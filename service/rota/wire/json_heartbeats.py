"""Heartbeats in JSON, the hot path: plainly well-formed input is parsed without the shapes.

All other input is None here, and goes to the shape, which names its error.
"""

from __future__ import annotations

from typing import Any

from rota.protocol.errors import RejectedRequest
from rota.protocol.ids import check_member_id
from rota.protocol.limits import MAX_SAFE_INTEGER, MAX_WAIT_MS, Limits
from rota.protocol.messages import NO_GENERATION, Heartbeat, MemberHeartbeat
from rota.wire.fields import INT32_MAX


def read_plain(document: dict[str, Any], namespace: str, group_id: str) -> Heartbeat | None:
    """A heartbeat of one dynamic member, as most are."""
    fields, wait_ms = 2, 0
    if "wait_ms" in document:
        fields, wait_ms = 3, document["wait_ms"]
        if type(wait_ms) is not int or not 0 <= wait_ms <= MAX_SAFE_INTEGER:
            return None
    if not _is_plain(document, fields):
        return None
    place = namespace, group_id, document["member_id"], document["generation_id"]
    return Heartbeat(*place, None, min(wait_ms, MAX_WAIT_MS))


def read_plain_members(document: dict[str, Any], limits: Limits) -> tuple[MemberHeartbeat, ...] | None:
    """Those of several dynamic members, in a message without a wait."""
    members = document.get("members")
    if len(document) != 1 or type(members) is not list or len(members) > limits.group_max_size:
        return None
    if not all(map(_is_plain, members)):
        return None
    return tuple([MemberHeartbeat(member["member_id"], member["generation_id"]) for member in members])


def _is_plain(value: Any, fields: int = 2) -> bool:
    """Whether it has a member id and a generation, both of which the shape would accept, among so many fields."""
    if type(value) is not dict or len(value) != fields:
        return False
    member_id, generation_id = value.get("member_id"), value.get("generation_id")
    if type(member_id) is not str or type(generation_id) is not int or not NO_GENERATION <= generation_id <= INT32_MAX:
        return False
    try:
        check_member_id(member_id)
    except RejectedRequest:
        return False
    return True
