"""A call of a member while it is under way on a stream."""

from __future__ import annotations

from collections.abc import Iterable

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


class BoundLeave:
    """A leave of members on this stream. They stay on it unless it succeeds: it may have been lost with their owner."""

    __slots__ = ("_calls", "_key", "_roster", "_stream")

    def __init__(self, roster: Roster, key: GroupKey, member_ids: Iterable[str], stream: Stream) -> None:
        self._roster = roster
        self._key = key
        self._stream = stream
        self._calls = {member_id: roster.calls_of(key, member_id) for member_id in member_ids}
        for calls in self._calls.values():
            calls.leaves += 1

    def end(self, code: ErrorCode | None) -> None:
        """The call is over, with this code; None where it has no answer."""
        if code is ErrorCode.NONE:
            self._roster.remove(self._stream, self._key, self._calls)
        for member_id, calls in self._calls.items():
            calls.leaves -= 1
            self._roster.end_call(self._key, member_id, calls)


Bound = BoundCall | BoundLeave


def begin_bound(roster: Roster, stream: Stream, request: Request) -> Bound | None:
    """Bind a joining member to this stream. None for a call without a member on the stream."""
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
            key = (request.namespace, request.group_id)
            streams = roster.streams(key)
            here = [each.member_id for each in request.members if streams.get(each.member_id) is stream]
            return BoundLeave(roster, key, here, stream) if here else None
    return None
