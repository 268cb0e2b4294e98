"""The use of each namespace and each caller with a quota at this replica. Every operation asks here."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rota.core.access.quotas import CALLER, NAMESPACE, Meter, Quota, Stored, quota_of
from rota.protocol.errors import ErrorCode
from rota.protocol.limits import Limits
from rota.protocol.messages import (
    Heartbeat,
    HeartbeatMany,
    HeartbeatManyReply,
    JoinGroup,
    JoinReply,
    Reply,
    Request,
    SyncGroup,
    SyncReply,
)
from rota.server.access.identity import Policy
from rota.server.observability.logs import log_refusal

MOST_METERS = 10_000
"""Beyond so many namespaces or callers, those that hold nothing here are forgotten: they begin with a full bucket."""
PARKED = ("max_parked",)
WATCH = ("max_watches", "max_parked")
"""A watch is parked for as long as it lasts."""
STREAM = ("max_streams",)
HEARTBEATS_PER_SESSION = 3
"""A client heartbeats three times in its session, or more often if that is long."""
KEPT_MS = 60_000
"""A member that has sent nothing for so long is forgotten, at the latest after twice that."""
OF_MEMBERS = frozenset({ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION})
"""Answers to heartbeats that only a member gets."""

Beats = Heartbeat | HeartbeatMany
_log = logging.getLogger(__name__)


class Meters:
    """One meter for each namespace and each caller with a quota, made anew when the quota changes.

    A caller is named by `rota.core.access.quotas.payer_of`. The caller's own meter is asked first, so that calls that
    it rejects take nothing of the namespace. Refusals are texts; empty if the operation is let through.
    """

    def __init__(self, policy: Policy, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy = policy
        self._clock = clock
        self._document = policy.document
        self._known = KnownMembers(limits, self._now_ms())
        self._meters: dict[str, dict[str, Meter]] = {NAMESPACE: {}, CALLER: {}}
        self._namespaces: dict[str, None] = {}
        """Those in which callers with a storage quota have made requests."""
        self._kept: dict[tuple[str, str], list[Meter]] = {}
        """The meters of a caller and a namespace, until one is made anew or forgotten."""
        self.refused: Callable[[str, str], object] = lambda _scope, _quota: None
        """Called for each refusal, with `namespace` or `caller` and the name of the limit."""

    def refusal_of(self, caller: str, request: Request) -> str:
        """Why the request is too much, asked before it is carried out."""
        now_ms = self._now_ms()
        asked = self._asked(caller, request.namespace, now_ms)
        if not asked or not isinstance(request, Heartbeat | HeartbeatMany):
            return self._first(asked, caller, now_ms, request=request)
        unknown, is_in_time = self._known.note(caller, request, now_ms)
        return "" if is_in_time and not unknown else self._first(asked, caller, now_ms, is_unconfirmed=unknown > 0)

    def refusal_of_answered(self, caller: str, request: Beats, reply: Reply) -> str:
        """Why heartbeats that were answered from memory are too much."""
        now_ms = self._now_ms()
        if not self._has_quotas():
            return ""
        unconfirmed = self._known.settle(caller, request, reply, now_ms) if _unconfirmed(request, reply) else 0
        if not unconfirmed and self._known.note(caller, request, now_ms, are_confirmed=True)[1]:
            return ""
        asked = self._asked(caller, request.namespace, now_ms)
        refusal = self._first(asked, caller, now_ms, is_unconfirmed=unconfirmed > 0)
        for meter in () if refusal or not unconfirmed else asked:
            meter.count_unconfirmed(caller, unconfirmed, now_ms)
        return refusal

    def settle(self, caller: str, request: Request, reply: Reply) -> None:
        """Count heartbeats that no member has sent, which the answer to a request shows."""
        now_ms = self._now_ms()
        if self._has_quotas() and (unconfirmed := self._known.settle(caller, request, reply, now_ms)):
            for meter in self._asked(caller, request.namespace, now_ms):
                meter.count_unconfirmed(caller, unconfirmed, now_ms)

    def refusal_of_call(self, caller: str, namespace: str = "", opening: tuple[str, ...] = ()) -> str:
        """Why an operation that is no request of the protocol is too much. One that stays open takes places of the
        limits in `opening`.
        """
        now_ms = self._now_ms()
        return self._first(self._asked(caller, namespace, now_ms), caller, now_ms, opening=opening)

    @contextmanager
    def holding(self, caller: str, kind: tuple[str, ...], namespace: str = "") -> Iterator[None]:
        """Count one more as open for as long as the block runs."""
        asked = self._asked(caller, namespace, self._now_ms())
        places = [meter.open[name] for meter in asked for name in kind]
        for each in places:
            each.take(caller)
        try:
            yield
        finally:
            for each in places:
                each.take(caller, -1)

    def to_look_at(self) -> dict[str, bool]:
        """Namespaces that the store must be read for, and whether their bytes count, which takes longer."""
        counts_bytes = any(meter.quota.max_stored_bytes is not None for meter in self._counting(CALLER).values())
        found = dict.fromkeys(self._namespaces, counts_bytes)
        for name, meter in self._counting(NAMESPACE).items():
            found[name] = found.get(name, False) or meter.quota.max_stored_bytes is not None
        return found

    def look(self, namespace: str, stored: Stored) -> None:
        """Replace the counts of a namespace by those of the store."""
        have_some = [meter.look(namespace, stored) for meter in self._counting(CALLER).values()]
        if (own := self._meters[NAMESPACE].get(namespace)) is not None:
            own.look(namespace, stored)
        if not any(have_some):  # It is read again once a caller asks for it.
            self._namespaces.pop(namespace, None)
            self._kept.clear()

    # --- inside ------------------------------------------------------------------------------------

    def _counting(self, scope: str) -> dict[str, Meter]:
        return {name: meter for name, meter in self._meters[scope].items() if meter.quota.counts_stored}

    def _first(self, asked: Sequence[Meter], caller: str, now_ms: int, **operation: Any) -> str:
        """The refusal of the first meter that refuses the operation."""
        for meter in asked:
            limit = meter.refusal_of(caller, now_ms, **operation)
            if limit:
                of, scope = meter.name, meter.scope
                self.refused(scope, limit)
                log_refusal(_log, "over quota", f"{scope} {of}", scope=scope, of=of, quota=limit, caller=caller)
                return f"the quota of {scope} {of} is exhausted: {limit} = {getattr(meter.quota, limit)}"
        return ""

    def _has_quotas(self) -> bool:
        document = self._policy.document
        if document is not self._document:
            self._document = document
            self._kept.clear()
        return bool(document.quotas or document.caller_quotas)

    def _asked(self, caller: str, namespace: str, now_ms: int) -> Sequence[Meter]:
        if not self._has_quotas():
            return ()
        known = self._kept.get((caller, namespace))
        if known is not None:
            return known
        asked, document = list[Meter](), self._document
        for scope, name, quotas in ((CALLER, caller, document.caller_quotas), (NAMESPACE, namespace, document.quotas)):
            quota = quota_of(quotas, name) if name else None
            if quota is not None:
                asked.append(self._meter(scope, name, quota, now_ms))
                if scope == CALLER and quota.counts_stored and namespace and len(self._namespaces) < MOST_METERS:
                    self._namespaces[namespace] = None
        if len(self._kept) >= MOST_METERS:
            self._kept.clear()
        self._kept[caller, namespace] = asked
        return asked

    def _meter(self, scope: str, name: str, quota: Quota, now_ms: int) -> Meter:
        meters = self._meters[scope]
        former = meters.get(name)
        if former is not None and former.quota == quota:
            return former
        if len(meters) >= MOST_METERS:
            self._kept.clear()
            meters = self._meters[scope] = {name: each for name, each in meters.items() if not each.is_idle}
        meter = meters[name] = Meter(quota, now_ms, scope, name, former.open if former is not None else None)
        return meter

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)


class KnownMembers:
    """Members that are known to live here, so that their heartbeats, at their own pace, are free (ADR 57).

    A heartbeat is never refused for coming at its member's own pace: that would expire members because of their
    neighbours. Only one that comes again sooner than any client's interval, or that no member has sent, takes part in
    the rate. A member is known once the coordinator has accepted a call in its name.

    Each has the time of its last heartbeat in time, by caller, namespace and group: by caller, so that one that uses
    the ids of another's members does not change their pace.
    """

    __slots__ = ("_last_ms", "_pace_ms", "_swept_ms")

    def __init__(self, limits: Limits, now_ms: int) -> None:
        # The shortest interval of any client: no member is refused for keeping to its own.
        self._pace_ms = limits.min_session_timeout_ms // HEARTBEATS_PER_SESSION
        self._swept_ms = now_ms
        self._last_ms: dict[tuple[str, str, str], dict[str, int]] = {}

    def note(self, caller: str, request: Beats, now_ms: int, *, are_confirmed: bool = False) -> tuple[int, bool]:
        """Note heartbeats of members that are known, or confirmed by now; returns the number of unknown members, and
        whether a heartbeat of a known one is in time. One that is too soon after the last one in time is not noted.
        """
        if now_ms - self._swept_ms >= KEPT_MS:
            self._sweep(now_ms)
        place, pace_ms, unknown, is_in_time = (caller, request.namespace, request.group_id), self._pace_ms, 0, False
        known, default_ms = self._last_ms.get(place, {}), now_ms - pace_ms if are_confirmed else None
        for member_id in _ids(request):
            last_ms = known.get(member_id, default_ms)
            if last_ms is None:
                unknown += 1
            elif now_ms - last_ms >= pace_ms:
                known[member_id] = now_ms
                is_in_time = True
        if is_in_time:
            self._last_ms[place] = known
        return unknown, is_in_time

    def settle(self, caller: str, request: Request, reply: Reply, now_ms: int) -> int:
        """Learn from an answer which members there are; returns how many heartbeats no member has sent."""
        unconfirmed: Sequence[str] = ()
        match request, reply:
            case ((Heartbeat() | HeartbeatMany()), _):
                unconfirmed, members = _unconfirmed(request, reply), _ids(request)
            case JoinGroup(), JoinReply(error=ErrorCode.NONE | ErrorCode.MEMBER_ID_REQUIRED):
                members = [reply.member_id]
            case SyncGroup(), SyncReply(error=ErrorCode.NONE):
                members = [request.member_id]
            case _:
                return 0
        known = self._last_ms.setdefault((caller, request.namespace, request.key), {})
        for member_id in members:
            known.setdefault(member_id, now_ms - self._pace_ms)
        for member_id in unconfirmed:
            known.pop(member_id, None)
        return len(unconfirmed)

    def _sweep(self, now_ms: int) -> None:
        self._swept_ms = now_ms
        for place, known in tuple(self._last_ms.items()):
            fresh = {member_id: last_ms for member_id, last_ms in known.items() if now_ms - last_ms < KEPT_MS}
            self._last_ms[place] = fresh
            if not fresh:
                del self._last_ms[place]


def _ids(request: Beats) -> Sequence[str]:
    """The ids of the members that a message of heartbeats names."""
    return (request.member_id,) if isinstance(request, Heartbeat) else [beat.member_id for beat in request.members]


def _unconfirmed(request: Beats, reply: Reply) -> Sequence[str]:
    """The ids that the answer does not confirm as those of members."""
    if reply.error not in OF_MEMBERS:
        return _ids(request)
    if isinstance(reply, HeartbeatManyReply) and reply.errors:
        return [error.member_id for error in reply.errors if error.error not in OF_MEMBERS]
    return ()
