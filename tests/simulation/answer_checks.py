"""What an answer says must be what the journal says at the answer's revision."""

from __future__ import annotations

from collections.abc import Iterator

from rota.core.types import server_side
from rota.protocol import messages as m
from rota.protocol.errors import ErrorCode
from tests.simulation.history import Call
from tests.simulation.ledger import GroupAccount, Ledger, account_since
from tests.simulation.maintenance_checks import check_refused_newcomer

_NONE = ErrorCode.NONE


def check_answer(ledger: Ledger, call: Call) -> Iterator[str]:
    """Compare one answer with the ledger as of its revision (S2, S3, S4, S5, S9, S12, S15)."""
    request, reply = call.request, call.reply
    key = (request.namespace, getattr(request, "group_id", ""))
    account = ledger.groups.get(key) or account_since(ledger.floors.get(key, 0))
    if reply is None:
        return
    match request, reply:
        case m.JoinGroup(), m.JoinReply(error=ErrorCode.NONE, pending=False):
            problems = _join(account, reply)
        case m.JoinGroup(), m.JoinReply():
            problems = check_refused_newcomer(account, request, reply)
        case m.SyncGroup(), m.SyncReply(error=ErrorCode.NONE, pending=False) if request.leader_error is None:
            problems = _sync(account, request, reply)
        case m.Heartbeat(), m.HeartbeatReply():
            problems = _heartbeat(account, request, reply)
        case m.LeaveGroup(), m.LeaveReply():
            problems = _leave(account, reply)
        case m.CommitOffsets(), m.CommitReply():
            problems = _commit(account, request, reply)
        case m.FetchOffsets(), m.FetchReply():
            problems = _fetch(account, reply)
        case m.DescribeGroup(), m.DescribeReply(error=ErrorCode.NONE):
            problems = _describe(account, reply)
        case m.VerifyFence(), m.FenceReply():
            problems = _fence(account, request, reply)
        case m.GetLeader(), m.LeaderReply():
            problems = _leader(account, reply)
        case m.DeleteGroup(), m.DeleteGroupReply(error=ErrorCode.NONE):
            problems = iter(["S12 is still there"] if key in ledger.groups else [])
        case _:
            return
    yield from (f"{problem}: {request} was answered {reply} as of {call.revision}" for problem in problems)


def _join(account: GroupAccount, reply: m.JoinReply) -> Iterator[str]:
    """S2, S3, S4: answers have the durable generation, leader and protocol; the leader the durable members."""
    answered = (reply.generation_id, reply.leader_id, reply.protocol_name, reply.protocol_type)
    durable = (account.generation_id, account.leader_id, account.protocol_name, account.protocol_type)
    if answered != durable:
        yield f"S2 answered {answered}, durable is {durable}"
    if reply.fencing_token != account.token_of(reply.member_id):
        yield f"S7d its token is {account.token_of(reply.member_id)}"
    if reply.member_id not in account.members:
        yield "S3 answered with a generation that it is not in"
    if account.state not in ("CompletingRebalance", "Stable"):
        yield f"S4 joined a generation in {account.state}"
    by_server = server_side(account.protocol_type, account.protocol_name) is not None
    share = account.assignments.get(reply.member_id, b"") if by_server and account.state == "Stable" else None
    if reply.assignment != share:
        yield f"S5 its share is {share!r}"
    if by_server and (reply.members or reply.skip_assignment != (reply.leader_id == reply.member_id)):
        yield "S3 a member is to assign although the server assigns"
    elif reply.leader_id == reply.member_id and not by_server:
        listed = {member.member_id: (member.group_instance_id, member.metadata) for member in reply.members}
        name = account.protocol_name
        durable_list = {i: (x.group_instance_id, x.metadata_for(name)) for i, x in account.members.items()}
        if listed != durable_list:
            yield f"S3 leader's list {listed}, durable is {durable_list}"
    elif reply.members:
        yield "S3 a follower got the list of members"


def _sync(account: GroupAccount, request: m.SyncGroup, reply: m.SyncReply) -> Iterator[str]:
    """S5: the assignment is the one in the journal."""
    if account.state != "Stable" or reply.generation_id != account.generation_id:
        yield f"S5 assigned for {reply.generation_id} in {account.state} {account.generation_id}"
    elif account.assignments.get(request.member_id, b"") != reply.assignment:
        yield f"S5 durable is {account.assignments.get(request.member_id)!r}"
    elif reply.fencing_token != account.token_of(request.member_id):
        yield f"S7d its token is {account.token_of(request.member_id)}"


def _heartbeat(account: GroupAccount, request: m.Heartbeat, reply: m.HeartbeatReply) -> Iterator[str]:
    """S15: a heartbeat's answer is true of the group at its revision."""
    is_member = request.member_id in account.members
    is_current = account.join_generation_id <= request.generation_id <= account.generation_id
    match reply.error:
        case ErrorCode.NONE:
            if not is_member or reply.generation_id != account.generation_id or account.state == "PreparingRebalance":
                yield f"S15 group is {account.state} {account.generation_id}, member: {is_member}"
            elif not is_current or _fences(account, request.member_id, request.group_instance_id):
                yield f"S15 it names another generation than {account.generation_id}, or another instance"
        case ErrorCode.REBALANCE_IN_PROGRESS:
            # A parked one may report a join phase that began and ended in the same instant.
            if reply.entered is not None:
                yield from _join(account, reply.entered)
            first = account.taken_along_from
            is_to_join = first is not None and first <= request.generation_id < account.join_generation_id
            if is_to_join and is_member:
                return
            if account.state != "PreparingRebalance" and account.generation_id <= reply.generation_id:
                yield f"S15 group is {account.state}"
        case ErrorCode.UNKNOWN_MEMBER_ID:
            if is_member and request.group_instance_id in (None, account.members[request.member_id].group_instance_id):
                yield "S15 it is a member"
        case ErrorCode.ILLEGAL_GENERATION:
            if is_current:
                yield "S15 it is the generation"


def _commit(account: GroupAccount, request: m.CommitOffsets, reply: m.CommitReply) -> Iterator[str]:
    """S9: accepted exactly from a member that is in the current generation, once that has an assignment."""
    due = _commit_error(account, request)
    if reply.error is not due and reply.error is not ErrorCode.GROUP_ID_NOT_FOUND:
        yield f"S9 {due} is due in {account.state}, generation {account.generation_id} of {list(account.settled)}"


def _commit_error(account: GroupAccount, request: m.CommitOffsets) -> ErrorCode:
    """What a commit is due, by the journal alone."""
    member_id, instance_id = request.member_id, request.group_instance_id
    if request.generation_id < 0 and account.state == "Empty":
        return _NONE
    if _fences(account, member_id, instance_id):
        return ErrorCode.FENCED_INSTANCE_ID
    if member_id not in account.members or (instance_id and instance_id not in account.static_members()):
        return ErrorCode.UNKNOWN_MEMBER_ID
    if request.generation_id != account.generation_id or member_id not in account.settled:
        return ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.REBALANCE_IN_PROGRESS if account.state == "CompletingRebalance" else _NONE


def _fences(account: GroupAccount, member_id: str, group_instance_id: str | None) -> bool:
    """Does the instance id belong to another member?"""
    if group_instance_id is None:
        return False
    holders = account.static_members().get(group_instance_id)
    return holders is not None and member_id not in holders


def _leave(account: GroupAccount, reply: m.LeaveReply) -> Iterator[str]:
    """S12: a member with an acknowledged leave is gone."""
    for member in reply.members:
        gone_id = member.member_id or member.group_instance_id
        if member.error is _NONE and (gone_id in account.members or gone_id in account.static_members()):
            yield f"S12 {gone_id} is still a member"


def _fetch(account: GroupAccount, reply: m.FetchReply) -> Iterator[str]:
    """S10, S15: progress as the journal has it."""
    for found in reply.offsets:
        durable = account.offsets.get((found.topic, found.partition))
        if found.offset != (durable.offset if durable is not None else -1):
            yield f"S10 durable is {durable}"


def _describe(account: GroupAccount, reply: m.DescribeReply) -> Iterator[str]:
    """S15: the description is true at its revision."""
    described = (reply.state, reply.generation_id, {member.member_id for member in reply.members}, reply.leader_id)
    durable = (account.state, account.generation_id, set(account.members), account.leads())
    if described != durable:
        yield f"S15 durable is {durable}"
    for member in reply.members:
        if member.fencing_token != account.token_of(member.member_id):
            yield f"S7d the token of {member.member_id} is {account.token_of(member.member_id)}"


def _fence(account: GroupAccount, request: m.VerifyFence, reply: m.FenceReply) -> Iterator[str]:
    """S15: a fence holds exactly while the generation is current and the member in it."""
    if reply.error is ErrorCode.GROUP_ID_NOT_FOUND:
        return
    current = request.generation_id == account.generation_id and account.state != "Empty"
    holds = current and (request.member_id in account.settled if request.member_id else not account.takeovers)
    if reply.error is _NONE and request.member_id and reply.fencing_token != account.token_of(request.member_id):
        yield f"S7d its token is {account.token_of(request.member_id)}"
    leads = holds and request.member_id != "" and request.member_id == account.leads()
    if (holds, leads) != (reply.error is _NONE, reply.is_leader):
        yield f"S15 generation {account.generation_id} in {account.state}, led by {account.leads()!r}"


def _leader(account: GroupAccount, reply: m.LeaderReply) -> Iterator[str]:
    """S2: only the leader in the journal is ever named as the leader of a generation, while it is a member."""
    if reply.error is _NONE and (reply.leader_id, reply.generation_id) != (account.leads(), account.generation_id):
        yield f"S2 generation {account.generation_id} is led by {account.leads()!r}"
    if reply.error is _NONE and reply.fencing_token != account.token_of(account.leads()):
        yield f"S7d the leader's token is {account.token_of(account.leads())}"
