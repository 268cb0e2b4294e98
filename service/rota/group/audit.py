"""The audit trail: a line beside those of what an administrator did, that says who and why."""

from __future__ import annotations

from collections.abc import Mapping

from rota.group.records import Administered, Entry
from rota.group.result import Result
from rota.group.state import Group
from rota.protocol.messages import Act, LeaveGroup, Request


def audit(result: Result, request: Request, group: Group | None, tombstones: Mapping[tuple[str, str], int]) -> None:
    """Note whose act the result is, which has changed something. The generation of a deleted group is its last one."""
    act: Act = getattr(request, "act")  # noqa: B009 - not every request has one
    note = act.note or _reason(request)
    record = Administered(type(request).__name__, act.actor, _target(request), note, act.origin)
    group_id = getattr(request, "group_id", "")
    former = tombstones.get((request.namespace, group_id), 0)
    generation_id = group.generation_id if group is not None else former
    result.records.append(Entry(request.namespace, group_id, generation_id, result.now_ms, record))


def _target(request: Request) -> str:
    if isinstance(request, LeaveGroup):
        return ", ".join(member.member_id or member.group_instance_id or "" for member in request.members)
    return getattr(request, "topic", "")


def _reason(request: Request) -> str:
    if isinstance(request, LeaveGroup):
        return next((member.reason for member in request.members if member.reason), "")
    return getattr(request, "reason", "")
