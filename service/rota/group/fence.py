"""VerifyFence: whether a token, or a generation, is still that of a member. Nothing here changes anything."""

from __future__ import annotations

from rota.group.membership_checks import check_caller, is_in_generation, why
from rota.group.state import EMPTY, Group, Member
from rota.protocol.errors import ErrorCode
from rota.protocol.fencing_token import fencing_token, generation_of, takeover_of
from rota.protocol.messages import FenceReply, VerifyFence

_NAME_THE_MEMBER = "a member of this generation was taken over: name the member, or show its fencing_token"


def verify_fence(group: Group, request: VerifyFence) -> FenceReply:
    """Whether the token, or the generation with the member, is current. The group's answer, in one look."""
    if not _is_current(group, request):
        return FenceReply(ErrorCode.ILLEGAL_GENERATION, generation_id=group.generation_id)
    if request.member_id:
        return _check_member(group, request)
    return _check_without_member(group, request)


def _is_current(group: Group, request: VerifyFence) -> bool:
    """Where both are shown, both must be. No generation has the number 0: protobuf sends it for one that is absent."""
    shown = {request.generation_id} if request.generation_id > 0 else set[int]()
    if request.fencing_token is not None:
        shown.add(generation_of(request.fencing_token))
    return shown == {group.generation_id} and group.state is not EMPTY


def _check_member(group: Group, request: VerifyFence) -> FenceReply:
    if not is_in_generation(group, request.member_id):
        return FenceReply(ErrorCode.UNKNOWN_MEMBER_ID, generation_id=group.generation_id)
    member = group.members[request.member_id]
    if request.sign and (error := check_caller(member, request.subject)) is not ErrorCode.NONE:
        return FenceReply(error, why(error, group, None), generation_id=group.generation_id)
    if request.fencing_token not in (None, group.token_of(member)):
        detail = "the fencing_token is not this member's"
        return FenceReply(ErrorCode.ILLEGAL_GENERATION, detail, generation_id=group.generation_id)
    return _holds(group, member)


def _check_without_member(group: Group, request: VerifyFence) -> FenceReply:
    """A successor's token names its holder. The members that took no place over share one, which a predecessor had."""
    takeover = takeover_of(request.fencing_token or 0)
    if takeover:
        holder = next((m for m in group.members.values() if m.takeover == takeover), None)
        if holder is not None:
            return _holds(group, holder)
        return FenceReply(ErrorCode.ILLEGAL_GENERATION, generation_id=group.generation_id)
    if group.takeovers:
        return FenceReply(ErrorCode.MEMBER_ID_REQUIRED, _NAME_THE_MEMBER, generation_id=group.generation_id)
    return FenceReply(generation_id=group.generation_id, fencing_token=fencing_token(group.generation_id))


def _holds(group: Group, member: Member) -> FenceReply:
    return FenceReply(
        generation_id=group.generation_id,
        is_leader=group.generation_leader_id == member.member_id,
        is_member=True,
        fencing_token=group.token_of(member),
        group_instance_id=member.image.group_instance_id,
    )
