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
Member = tuple[str, str, str, str]


class KnownMembers:
    """Members by caller, namespace, group and id, each with the time of its last heartbeat.

    By caller, so that one that uses the ids of another's members does not change the pace of these.
    They are kept in two halves, of which the older one is dropped whole.
    """

    __slots__ = ("_before", "_now", "_pace_ms", "_since_ms")

    def __init__(self, limits: Limits, now_ms: int) -> None:
        # The shortest interval of any client: no member is refused for keeping to its own.
        self._pace_ms = limits.min_session_timeout_ms // HEARTBEATS_PER_SESSION
        self._since_ms = now_ms
        self._now: dict[Member, int] = {}
        self._before: dict[Member, int] = {}

    def knows_all(self, caller: str, request: Beats) -> bool:
        """Whether all members that the request names are known."""
        return all(self._last_ms(each) is not None for each in members_of(caller, request))

    def note(self, caller: str, request: Beats, now_ms: int) -> bool:
        """Note heartbeats of known members; whether one of them is in time, and the request free of charge."""
        return self._hear(caller, request, now_ms, is_confirmed=False)

    def judge(self, caller: str, request: Beats, reply: m.Reply, now_ms: int) -> tuple[int, bool]:
        """How many heartbeats no member has sent, by the answer; and if none is, whether one is in time."""
        if _strangers(request, reply):
            return self.settle(caller, request, reply), False
        return 0, self._hear(caller, request, now_ms, is_confirmed=True)

    def is_in_time(self, member: Member, now_ms: int) -> bool:
        """`judge` for one heartbeat that its member has sent, by the answer."""
        if now_ms - self._since_ms >= KEPT_MS:
            self._forget_old(now_ms)
        last_ms = self._now.get(member)
        if last_ms is None:
            last_ms = self._before.get(member, NEVER)
        if now_ms - last_ms < self._pace_ms:
            return False
        self._now[member] = now_ms
        return True

    def settle(self, caller: str, request: m.Request, reply: m.Reply) -> int:
        """Learn from an answer which members there are; returns how many heartbeats no member has sent."""
        match request, reply:
            case ((m.Heartbeat() | m.HeartbeatMany()), _):
                return self._settle_heartbeats(caller, request, reply)
            case m.JoinGroup(), m.JoinReply(error=ErrorCode.NONE | ErrorCode.MEMBER_ID_REQUIRED):
                self._learn((caller, request.namespace, request.group_id, reply.member_id))
            case m.SyncGroup(), m.SyncReply(error=ErrorCode.NONE):
                self._learn((caller, request.namespace, request.group_id, request.member_id))
        return 0

    def _settle_heartbeats(self, caller: str, request: Beats, reply: m.Reply) -> int:
        strangers, count = _strangers(request, reply), 0
        for member in members_of(caller, request):
            if member[-1] in strangers:
                count += 1
                self._now.pop(member, None)
                self._before.pop(member, None)
            else:
                self._learn(member)
        return count

    def _learn(self, member: Member) -> None:
        if self._last_ms(member) is None:
            self._now[member] = NEVER

    def _hear(self, caller: str, request: Beats, now_ms: int, *, is_confirmed: bool) -> bool:
        """Note heartbeats of members that are known, or confirmed by now; whether one is in time.

        One that is too soon after the last one in time leaves that noted.
        """
        self._forget_old(now_ms)
        recent, before, in_time = self._now, self._before, False
        for member in members_of(caller, request):
            last_ms = recent.get(member)
            if last_ms is None:
                last_ms = before.get(member, NEVER if is_confirmed else None)
            if last_ms is not None and now_ms - last_ms >= self._pace_ms:
                recent[member] = now_ms
                in_time = True
        return in_time

    def _last_ms(self, member: Member) -> int | None:
        return self._now.get(member, self._before.get(member))

    def _forget_old(self, now_ms: int) -> None:
        if now_ms - self._since_ms >= KEPT_MS:
            fresh = now_ms - self._since_ms < 2 * KEPT_MS
            self._before, self._now, self._since_ms = self._now if fresh else {}, {}, now_ms


def members_of(caller: str, request: Beats) -> Sequence[Member]:
    """The members that a message of heartbeats names."""
    namespace, group_id = request.namespace, request.group_id
    if isinstance(request, m.Heartbeat):
        return ((caller, namespace, group_id, request.member_id),)
    return [(caller, namespace, group_id, beat.member_id) for beat in request.members]


def _strangers(request: Beats, reply: m.Reply) -> frozenset[str]:
    """The ids that the answer does not confirm as those of members."""
    if reply.error is not ErrorCode.NONE and reply.error not in OF_MEMBERS:
        return frozenset(member[-1] for member in members_of("", request))
    errors = reply.errors if isinstance(reply, m.HeartbeatManyReply) else ()
    if not errors:
        return _NONE
    return frozenset(error.member_id for error in errors if error.error not in OF_MEMBERS)
