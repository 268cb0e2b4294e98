"""A call of a member while it is under way on a stream."""

from __future__ import annotations

from rota.api.grpc.roster import GroupKey, Roster, Stream, StreamMember
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import JoinGroup, LeaveGroup, Request, SyncGroup

IS_NO_MEMBER = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)


class BoundCall:
    """A join or a sync of a member on this stream. Until `end` the member gets no push that repeats its answer."""

    __slots__ = ("_former", "_is_join", "_key", "_member", "_roster")

    def __init__(
        self, roster: Roster, key: GroupKey, member: StreamMember, former: StreamMember | None, *, is_join: bool
    ) -> None:
        """`former` is how the member was bound before it joined here."""
        self._roster = roster
        self._key = key
        self._member = member
        self._former = former
        self._is_join = is_join
        if is_join:
            member.joins += 1
        else:
            member.syncs += 1

    def end(self, code: ErrorCode | None) -> None:
        """The call is over, with this code; None where it has no answer."""
        member = self._member
        if not self._is_join:
            member.syncs -= 1
            return
        if code in IS_NO_MEMBER:
            self._roster.remove(member.stream, self._key, [member.member_id])
        elif code is ErrorCode.GROUP_AUTHORIZATION_FAILED:
            self._roster.give_back(member, self._key, self._former)
        member.joins -= 1


def begin_bound(roster: Roster, stream: Stream, request: Request) -> BoundCall | None:
    """Bind a joining member to this stream; unbind leaving ones. None for a call without a member on the stream."""
    match request:
        case JoinGroup() if request.member_id:
            key = (request.namespace, request.group_id)
            former = roster.bound_members(key).get(request.member_id)
            member = roster.bound_member(stream, key, request.member_id, request.group_instance_id)
            return BoundCall(roster, key, member, former, is_join=True)
        case SyncGroup():
            key = (request.namespace, request.group_id)
            bound = roster.bound_members(key).get(request.member_id)
            return None if bound is None else BoundCall(roster, key, bound, None, is_join=False)
        case LeaveGroup():
            roster.remove(stream, (request.namespace, request.group_id), [each.member_id for each in request.members])
    return None
