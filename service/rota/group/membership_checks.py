"""Is this request from a current member of the current generation? The order of the checks is Kafka's."""

from __future__ import annotations

from rota.group.apply import record
from rota.group.records import RequestFenced
from rota.group.result import Result
from rota.group.state import Group, Member
from rota.protocol.errors import ErrorCode

FENCED_INSTANCE_ID = ErrorCode.FENCED_INSTANCE_ID
ILLEGAL_GENERATION = ErrorCode.ILLEGAL_GENERATION
NONE = ErrorCode.NONE
UNKNOWN_MEMBER_ID = ErrorCode.UNKNOWN_MEMBER_ID


NOT_THE_CALLER = "another caller joined as this member"


def check_caller(member: Member, subject: str) -> ErrorCode:
    """Whether this caller may act as the member: it joined as it, or either of them is not known.

    A member that joined without rules has no caller, and gets one when it joins in a later join phase.
    """
    is_callers = not subject or member.image.subject in ("", subject)
    return NONE if is_callers else ErrorCode.GROUP_AUTHORIZATION_FAILED


def taken_over(group_instance_id: str, host: str) -> str:
    """Why a member was fenced, for the journal and for the fenced process: its operator has to find the other one."""
    return f"another process{f' at {host}' if host else ''} joined as {group_instance_id}"


def why(error: ErrorCode, group: Group, group_instance_id: str | None) -> str:
    """What an answer with this error says for people."""
    if error is FENCED_INSTANCE_ID and group_instance_id is not None:
        return taken_over(group_instance_id, group.members[group.static_members[group_instance_id]].image.host)
    return NOT_THE_CALLER if error is ErrorCode.GROUP_AUTHORIZATION_FAILED else ""


def check_member(group: Group, member_id: str, group_instance_id: str | None, subject: str) -> ErrorCode:
    """Fenced instance first, then unknown member (protocol.md §8.8), then whether it is the caller's."""
    if group_instance_id is not None:
        current = group.static_members.get(group_instance_id)
        if current is None:
            return UNKNOWN_MEMBER_ID
        if current != member_id:
            return FENCED_INSTANCE_ID
    member = group.members.get(member_id)
    if member is None:
        return UNKNOWN_MEMBER_ID
    return check_caller(member, subject) if subject else NONE


def check_generation(
    group: Group, member_id: str, group_instance_id: str | None, generation_id: int, subject: str
) -> ErrorCode:
    """A current member, and the current generation."""
    error = check_member(group, member_id, group_instance_id, subject)
    if error is NONE and generation_id != group.generation_id:
        return ILLEGAL_GENERATION
    return error


def was_taken_along(group: Group, member_id: str, generation_id: int) -> bool:
    """Whether this is an earlier generation, which the member may still hold, for it was taken along into the present
    one: it is to join. See `rebalance.py`.
    """
    member = group.members.get(member_id)
    first = None if member is None else member.taken_along_from
    return first is not None and first <= generation_id < group.join_generation_id


def is_in_generation(group: Group, member_id: str) -> bool:
    """Whether the member is in the current generation: the rule of commits and of fence checks (S9).

    A newcomer of a join phase under way is a member, but only of the next generation. Transactions in Postgres have the
    same rule, because the store has the rows of settled members only.
    """
    member = group.members.get(member_id)
    return member is not None and member.settled is not None


def report_fenced(
    result: Result,
    group: Group,
    operation: str,
    error: ErrorCode,
    member_id: str,
    group_instance_id: str | None,
    generation_id: int,
) -> None:
    """Record the request of a zombie in the journal, once for a member, operation and generation."""
    if error is not FENCED_INSTANCE_ID and (error is not ILLEGAL_GENERATION or generation_id >= group.generation_id):
        return
    if len(group.fenced_reported) < 1_000 and (operation, member_id) not in group.fenced_reported:
        group.fenced_reported.add((operation, member_id))
        record(result, group, RequestFenced(member_id, group_instance_id, operation, error.value, generation_id))
