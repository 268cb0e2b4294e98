"""A call of a member while it is under way on a stream."""

from __future__ import annotations

from rota.api.grpc.roster import GroupKey, Roster, Stream
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import JoinGroup, LeaveGroup, Request, SyncGroup

IS_NO_MEMBER = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)


class BoundCall:
    """A join or a sync of a member on this stream. Until `end` the member gets no push that repeats its answer."""

    __slots__ = ("_calls", "_former", "_is_join", "_key", "_member_id", "_roster", "_stream")

    def __init__(
        self, roster: Roster, key: GroupKey, member_id: str, stream: Stream, former: Stream | None, *, is_join: bool
    ) -> None:
        """The member is bound to `stream`; `former` is the one that it was on before it joined here."""
        self._roster = roster
        self._key = key
        self._member_id = member_id
        self._stream = stream
        self._former = former
        self._is_join = is_join
        self._calls = roster.calls_of(key, member_id)
        if is_join:
            self._calls.joins += 1
        else:
            self._calls.syncs += 1

    def end(self, code: ErrorCode | None) -> None:
        """The call is over, with this code; None where it has no answer."""
        if not self._is_join:
            self._calls.syncs -= 1
        else:
            if code in IS_NO_MEMBER:
                self._roster.remove(self._stream, self._key, [self._member_id])
            elif code is ErrorCode.GROUP_AUTHORIZATION_FAILED:
                self._roster.give_back(self._stream, self._key, self._member_id, self._former)
            self._calls.joins -= 1
        self._roster.end_call(self._key, self._member_id, self._calls)


def begin_bound(roster: Roster, stream: Stream, request: Request) -> BoundCall | None:
    """Bind a joining member to this stream; unbind leaving ones. None for a call without a member on the stream."""
    match request:
        case JoinGroup() if request.member_id:
            key = (request.namespace, request.group_id)
            former = roster.streams(key).get(request.member_id)
            roster.bind(stream, key, request.member_id)
            return BoundCall(roster, key, request.member_id, stream, former, is_join=True)
        case SyncGroup():
            key = (request.namespace, request.group_id)
            its_stream = roster.streams(key).get(request.member_id)
            if its_stream is None:
                return None
            return BoundCall(roster, key, request.member_id, its_stream, None, is_join=False)
        case LeaveGroup():
            roster.remove(stream, (request.namespace, request.group_id), [each.member_id for each in request.members])
    return None
