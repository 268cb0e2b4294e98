"""Which members are known to live here, so that their heartbeats, at their own pace, are free (ADR 57).

A heartbeat is never refused for coming at its member's own pace: that would expire members because of their
neighbours. Only one that comes again sooner than any client's interval, or that no member has sent, takes part in
the rate. A member is known once the coordinator has accepted a call in its name.
"""

from __future__ import annotations

from collections.abc import Sequence

from rota.protocol import messages as m
from rota.protocol.errors import ErrorCode
from rota.protocol.limits import Limits

HEARTBEATS_PER_SESSION = 3
"""A client heartbeats three times in its session, or more often if that is long."""
KEPT_MS = 60_000
"""A member that has sent nothing for so long is forgotten, at the latest after twice that."""
OF_MEMBERS = frozenset({ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION})
"""Answers to heartbeats that only a member gets."""
NEVER = -1_000_000
_NONE = frozenset[str]()

Beats = m.Heartbeat | m.HeartbeatMany
Place = tuple[str, str, str]
"""A caller, a namespace and a group of it."""
_Times = dict[Place, dict[str, int]]
_EMPTY: dict[str, int] = {}


class KnownMembers:
    """Members by caller, namespace and group, and by id, each with the time of its last heartbeat in time.

    By caller, so that one that uses the ids of another's members does not change the pace of these.
    They are kept in two halves, of which the older one is dropped whole.
    """

    __slots__ = ("_before", "_now", "_pace_ms", "_since_ms")

    def __init__(self, limits: Limits, now_ms: int) -> None:
        # The shortest interval of any client: no member is refused for keeping to its own.
        self._pace_ms = limits.min_session_timeout_ms // HEARTBEATS_PER_SESSION
        self._since_ms = now_ms
        self._now: _Times = {}
        self._before: _Times = {}

    def knows_all(self, caller: str, request: Beats) -> bool:
        """Whether all members that the request names are known."""
        place = (caller, request.namespace, request.group_id)
        return all(self._last_ms(place, each) is not None for each in _ids(request))

    def note(self, caller: str, request: Beats, now_ms: int) -> bool:
        """Note heartbeats of known members; whether one of them is in time, and the request free of charge."""
        return self._note(caller, request, now_ms, is_confirmed=False)

    def judge(self, caller: str, request: Beats, reply: m.Reply, now_ms: int) -> tuple[int, bool]:
        """How many heartbeats no member has sent, by the answer; and if none is, whether one is in time."""
        if _strangers(request, reply):
            return self.settle(caller, request, reply), False
        return 0, self._note(caller, request, now_ms, is_confirmed=True)

    def settle(self, caller: str, request: m.Request, reply: m.Reply) -> int:
        """Learn from an answer which members there are; returns how many heartbeats no member has sent."""
        match request, reply:
            case ((m.Heartbeat() | m.HeartbeatMany()), _):
                return self._settle_heartbeats(caller, request, reply)
            case m.JoinGroup(), m.JoinReply(error=ErrorCode.NONE | ErrorCode.MEMBER_ID_REQUIRED):
                self._learn((caller, request.namespace, request.group_id), reply.member_id)
            case m.SyncGroup(), m.SyncReply(error=ErrorCode.NONE):
                self._learn((caller, request.namespace, request.group_id), request.member_id)
        return 0

    def _settle_heartbeats(self, caller: str, request: Beats, reply: m.Reply) -> int:
        place = (caller, request.namespace, request.group_id)
        strangers, count = _strangers(request, reply), 0
        for member_id in _ids(request):
            if member_id in strangers:
                count += 1
                for half in (self._now, self._before):
                    half.get(place, _EMPTY).pop(member_id, None)
            else:
                self._learn(place, member_id)
        return count

    def _learn(self, place: Place, member_id: str) -> None:
        if self._last_ms(place, member_id) is None:
            self._now.setdefault(place, {})[member_id] = NEVER

    def _note(self, caller: str, request: Beats, now_ms: int, *, is_confirmed: bool) -> bool:
        """Note heartbeats of members that are known, or confirmed by now; whether one is in time.

        One that is too soon after the last one in time leaves that noted. A loop for thousands of members: written out.
        """
        self._forget_old(now_ms)
        place: Place = (caller, request.namespace, request.group_id)
        pace_ms, unknown_ms = self._pace_ms, NEVER if is_confirmed else None
        recent, before = self._now.get(place), self._before.get(place, _EMPTY)
        if recent is None:
            recent = {}
        in_time = False
        for member_id in _ids(request):
            last_ms = recent.get(member_id)
            if last_ms is None:
                last_ms = before.get(member_id, unknown_ms)
            if last_ms is None:
                continue
            if now_ms - last_ms >= pace_ms:
                recent[member_id] = now_ms
                in_time = True
        if in_time:
            self._now[place] = recent
        return in_time

    def _last_ms(self, place: Place, member_id: str) -> int | None:
        return self._now.get(place, _EMPTY).get(member_id, self._before.get(place, _EMPTY).get(member_id))

    def _forget_old(self, now_ms: int) -> None:
        if now_ms - self._since_ms >= KEPT_MS:
            fresh = now_ms - self._since_ms < 2 * KEPT_MS
            self._before, self._now, self._since_ms = self._now if fresh else {}, {}, now_ms


def _ids(request: Beats) -> Sequence[str]:
    """The ids of the members that a message of heartbeats names."""
    if isinstance(request, m.Heartbeat):
        return (request.member_id,)
    return [beat.member_id for beat in request.members]


def _strangers(request: Beats, reply: m.Reply) -> frozenset[str]:
    """The ids that the answer does not confirm as those of members."""
    if reply.error is not ErrorCode.NONE and reply.error not in OF_MEMBERS:
        return frozenset(_ids(request))
    errors = reply.errors if isinstance(reply, m.HeartbeatManyReply) else ()
    if not errors:
        return _NONE
    return frozenset(error.member_id for error in errors if error.error not in OF_MEMBERS)
