"""Quotas of a namespace: how much of the service one tenant may take, so that the others keep theirs.

A heartbeat is never refused for coming at its member's own pace: that would expire members because of their
neighbours. Only one that comes again sooner than any client's interval can be too much.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rota.protocol import messages as m
from rota.protocol.limits import Limits

HEARTBEATS_PER_SESSION = 3
"""A client heartbeats three times in its session, or more often if that is long."""
BURST_S = 2
"""A bucket holds so many seconds' worth."""


@dataclass(frozen=True, slots=True)
class Quota:
    """What a namespace may take; None for as much as there is.

    Groups and members count in the whole store. What is parked, and both rates, count at each replica.
    """

    max_groups: int | None = None
    max_members: int | None = None
    max_parked: int | None = None
    requests_per_s: int | None = None
    bytes_per_s: int | None = None

    @property
    def counts_stored(self) -> bool:
        """Whether it takes a look into the store."""
        return self.max_groups is not None or self.max_members is not None


@dataclass(frozen=True, slots=True)
class Stored:
    """What a namespace has in the store. `instances` are its static members, as (group id, instance id)."""

    groups: frozenset[str] = frozenset()
    members: int = 0
    instances: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Taken:
    """What a namespace takes at one replica: parked calls, and of each rate what `BURST_S` seconds allow."""

    parked: int = 0
    requests: int = 0
    bytes: int = 0


class Bucket:
    """A token bucket: fills by `per_s`, holds `BURST_S` seconds' worth, and may be overdrawn by one request."""

    __slots__ = ("_at_ms", "_capacity", "_level", "_per_s")

    def __init__(self, per_s: int, now_ms: int) -> None:
        self._per_s = per_s
        self._capacity = float(per_s * BURST_S)
        self._level = self._capacity
        self._at_ms = now_ms

    def take(self, amount: float, now_ms: int) -> bool:
        """Take so much, unless it is empty. Overdrawing lets a large request through at all, and the next ones wait."""
        self._level = min(self._capacity, self._level + max(0, now_ms - self._at_ms) * self._per_s / 1000)
        self._at_ms = now_ms
        if self._level <= 0:
            return False
        self._level -= amount
        return True

    def taken(self, now_ms: int) -> int:
        """How much of what it holds when it is full is taken now."""
        filled = self._level + max(0, now_ms - self._at_ms) * self._per_s / 1000
        return round(self._capacity - min(self._capacity, filled))


class Recent:
    """Who was heard within the last `window_ms`, in two halves that are thrown away whole."""

    __slots__ = ("_before", "_now", "_since_ms", "_window_ms")

    def __init__(self, window_ms: int, now_ms: int) -> None:
        self._window_ms = window_ms
        self._since_ms = now_ms
        self._now: dict[tuple[str, str], int] = {}
        self._before: dict[tuple[str, str], int] = {}

    def hear(self, member: tuple[str, str], now_ms: int) -> bool:
        """Note that the member was heard; False if that is too soon after the last time, which then stays noted."""
        if now_ms - self._since_ms >= self._window_ms:
            fresh = now_ms - self._since_ms < 2 * self._window_ms
            self._before, self._now, self._since_ms = self._now if fresh else {}, {}, now_ms
        last_ms = self._now.get(member, self._before.get(member))
        if last_ms is not None and now_ms - last_ms < self._window_ms:
            return False
        self._now[member] = now_ms
        return True


class Meter:
    """What one namespace takes at this replica, against its quota."""

    def __init__(self, quota: Quota, limits: Limits, now_ms: int) -> None:
        self.quota = quota
        self.parked = 0
        """Calls that may wait, and watches."""
        self._stored = Stored()
        self._joined: dict[str, int] = {}
        """Newcomers that were let in since the store was looked at, by group; none in those that a commit made."""
        self._requests = Bucket(quota.requests_per_s, now_ms) if quota.requests_per_s is not None else None
        self._bytes = Bucket(quota.bytes_per_s, now_ms) if quota.bytes_per_s is not None else None
        # The shortest interval of any client: no member is refused for keeping to its own.
        self._recent = Recent(limits.min_session_timeout_ms // HEARTBEATS_PER_SESSION, now_ms)

    def look(self, stored: Stored) -> None:
        """Take in what the store has now."""
        self._stored = stored
        self._joined.clear()

    def taken(self, now_ms: int) -> Taken:
        """What it holds and has spent here by now."""
        requests, octets = (bucket.taken(now_ms) if bucket else 0 for bucket in (self._requests, self._bytes))
        return Taken(self.parked, requests, octets)

    def refusal_of(self, request: m.Request, now_ms: int) -> str:
        """Why the request is too much; empty where it is not. What is let through is counted."""
        if isinstance(request, m.Heartbeat | m.HeartbeatMany):
            return self._refusal_of_heartbeat(request, now_ms)
        refusal = self._refusal_of_call(now_ms)
        if refusal:
            return refusal
        if self._bytes is not None and not self._bytes.take(payload_bytes(request), now_ms):
            return f"more than {self.quota.bytes_per_s} bytes a second"
        refusal = self._refusal_of_parked() if may_park(request) else ""
        if refusal:
            return refusal
        match request:
            case m.JoinGroup():
                return self._refusal_of_newcomer(request)
            case m.CommitOffsets(is_standalone=True):
                return self._refusal_of_group(request.group_id)
            case _:
                return ""

    def refusal_of_watch(self, now_ms: int) -> str:
        """The same for following a group, which is parked for as long as it lasts."""
        return self._refusal_of_call(now_ms) or self._refusal_of_parked()

    def _refusal_of_call(self, now_ms: int) -> str:
        if self._requests is not None and not self._requests.take(1, now_ms):
            return f"more than {self.quota.requests_per_s} requests a second"
        return ""

    def _refusal_of_parked(self) -> str:
        if self.quota.max_parked is not None and self.parked >= self.quota.max_parked:
            return f"more than {self.quota.max_parked} parked calls"
        return ""

    def _refusal_of_heartbeat(self, request: m.Heartbeat | m.HeartbeatMany, now_ms: int) -> str:
        """By the member, and of several by any that is in time: its life must not hang on its neighbours'."""
        if self._requests is None:
            return ""
        beats = request.members if isinstance(request, m.HeartbeatMany) else (request,)
        heard = [self._recent.hear((request.group_id, beat.member_id), now_ms) for beat in beats]
        if any(heard) or not heard or self._requests.take(1, now_ms):
            return ""
        return f"heartbeats faster than any client's interval, and {self.quota.requests_per_s} requests a second"

    def _refusal_of_newcomer(self, request: m.JoinGroup) -> str:
        if request.member_id or (request.group_id, request.group_instance_id) in self._stored.instances:
            return ""
        quota = self.quota
        if quota.max_members is not None and self._stored.members + sum(self._joined.values()) >= quota.max_members:
            return f"more than {quota.max_members} members"
        refusal = self._refusal_of_group(request.group_id)
        if not refusal and quota.counts_stored:
            self._joined[request.group_id] = self._joined.get(request.group_id, 0) + 1
        return refusal

    def _refusal_of_group(self, group_id: str) -> str:
        """Who joins a group makes it, and so does a commit without being a member."""
        quota = self.quota
        if quota.max_groups is None or group_id in self._stored.groups or group_id in self._joined:
            return ""
        opened = sum(1 for name in self._joined if name not in self._stored.groups)
        if len(self._stored.groups) + opened >= quota.max_groups:
            return f"more than {quota.max_groups} groups"
        self._joined[group_id] = 0
        return ""


def quota_of(quotas: Mapping[str, Quota], namespace: str) -> Quota | None:
    """A namespace's own quota, otherwise that of `*`."""
    return quotas.get(namespace, quotas.get("*"))


def may_park(request: m.Request) -> bool:
    """Whether it may hold memory here while it waits. A heartbeat holds less than its member does anyway."""
    if isinstance(request, m.JoinGroup | m.SyncGroup):
        return request.wait_ms is None or request.wait_ms > 0
    return not isinstance(request, m.Heartbeat) and m.parks_for_ms(request) > 0


def payload_bytes(request: m.Request) -> int:
    """The bytes that a request brings to be kept or handed on."""
    match request:
        case m.JoinGroup():
            return sum(len(protocol.name) + len(protocol.metadata) for protocol in request.protocols)
        case m.SyncGroup():
            return sum(len(assignment) for _, assignment in request.assignments)
        case m.CommitOffsets():
            return sum(16 + len(offset.topic) + len(offset.metadata) for offset in request.offsets)
        case m.PutTopic():
            return sum(len(name) + len(value) for name, value in request.attributes)
        case _:
            return 0
