"""Quotas: how much of the service one namespace, and one caller, may take, so that the others keep theirs.

Each operation asks the meters of its caller and, if it is about one, of its namespace (`rota.server.access.meters`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta, Struct

from rota.core.access.rules import ANONYMOUS_SUBJECT, ANY
from rota.core.access.sources import source_of
from rota.protocol import messages as m

REPLACED_BYTES = 1_024
"""A member of a full namespace may still rejoin and sync with so much, as that replaces its former bytes."""
BURST_S = 2
"""A bucket holds so many seconds' worth."""
ACTIVE_MS = 2_000
"""A caller has a share of a bucket until it has asked nothing for so long."""
MOST_SHARES = 10_000
"""Beyond so many callers, the others get the rest."""
_READS = 2
"""A new group or topic is forgotten if the second read of the store does not show it."""
NAMESPACE, CALLER = "namespace", "caller"
_KEPT = 10
"""One of so many places of a namespace is kept for callers that have less than an equal share of them."""


_Most = Annotated[int, Meta(ge=1)] | None


class Quota(Struct, frozen=True, forbid_unknown_fields=True):
    """The most that a namespace or a caller may take; None is unlimited.

    Stored groups, topics and bytes count in the whole store. Open calls, and both rates, count at each replica.
    """

    max_groups: _Most = None
    max_members: _Most = None
    max_topics: _Most = None
    max_stored_bytes: _Most = None
    max_parked: _Most = None
    max_watches: _Most = None
    max_streams: _Most = None
    """For callers alone: a stream belongs to no namespace."""
    requests_per_s: _Most = None
    bytes_per_s: _Most = None

    @property
    def counts_stored(self) -> bool:
        """Whether the store must be read for it."""
        return (self.max_groups, self.max_members, self.max_topics, self.max_stored_bytes) != (None,) * 4


@dataclass(frozen=True, slots=True)
class Held:
    """The members of one caller in a namespace: their groups, their number, the bytes of their metadata and shares."""

    groups: frozenset[str] = frozenset()
    members: int = 0
    bytes: int = 0


@dataclass(slots=True)
class Stored:
    """The content of a namespace in the store, or one caller's part of it. A meter adds what it lets in meanwhile.

    `instances` are its static members, as (group id, instance id); `bytes` are those of metadata and assignments of
    members, of topics and of offsets; `offset_bytes` are those of offsets, by group; `by_caller` is by subject.
    """

    groups: set[str] = field(default_factory=set)
    members: int = 0
    instances: frozenset[tuple[str, str]] = frozenset()
    topics: set[str] = field(default_factory=set)
    bytes: int = 0
    offset_bytes: Mapping[str, int] = field(default_factory=dict)
    by_caller: Mapping[str, Held] = field(default_factory=dict)

    def of_caller(self, subject: str, made: Mapping[str, int]) -> Stored:
        """The caller's part: the bytes of its members, and the groups and topics that it made."""
        held, groups = self.by_caller.get(subject, Held()), self.groups & made.keys()
        octets = held.bytes + sum(self.offset_bytes.get(group, 0) for group in groups)
        return Stored({*held.groups, *groups}, held.members, self.instances, self.topics & made.keys(), octets)


def quota_of(quotas: Mapping[str, Quota], name: str) -> Quota | None:
    """A namespace's or caller's own quota, otherwise that of the longest beginning before a `*`."""
    own = quotas.get(name)
    if own is not None or len(quotas) == 0:
        return own
    fitting = [pattern for pattern in quotas if pattern.endswith(ANY) and name.startswith(pattern[:-1])]
    return quotas[max(fitting, key=len)] if fitting else None


def payer_of(subject: str, origin: str) -> str:
    """The name under which a caller's use is counted: its subject, or its source where it has proven none."""
    if subject != ANONYMOUS_SUBJECT or not origin:
        return subject
    return f"{ANONYMOUS_SUBJECT} {source_of(origin)}"


# --- rates and places --------------------------------------------------------------------------------


class Bucket:
    """A token bucket: fills by `per_s`, holds `BURST_S` seconds' worth, and may be overdrawn by one request."""

    __slots__ = ("at_ms", "level", "per_s")

    def __init__(self, per_s: float, now_ms: int) -> None:
        self.per_s = per_s
        self.level = per_s * BURST_S
        self.at_ms = now_ms
        """The time of its last filling."""

    def fill(self, now_ms: int) -> None:
        if now_ms != self.at_ms:
            self.level = min(self.per_s * BURST_S, self.level + max(0, now_ms - self.at_ms) * self.per_s / 1000)
            self.at_ms = now_ms


class Turns:
    """A bucket that callers share: each has an equal share of the rate for certain, and whatever the others leave.

    Shares take from the whole as well, so all callers together get no more than the rate. What a caller takes beyond
    its share is not held against it later.
    """

    __slots__ = ("_shares", "_swept_ms", "_whole")

    def __init__(self, per_s: int, now_ms: int) -> None:
        self._whole = Bucket(per_s, now_ms)
        self._shares: dict[str, Bucket] = {}
        self._swept_ms = now_ms

    def take(self, caller: str, amount: float, now_ms: int, *, is_due: bool = False) -> bool:
        """Take so much for the caller, unless its share and the whole are empty; what is due is taken all the same.

        Overdrawing lets a large request through at all, and the next ones wait.
        """
        whole, share = self._whole, self._shares.get(caller)
        if share is None or share.at_ms != now_ms:
            share = self._share(caller, now_ms)
            whole.fill(now_ms)
        has_share = share is not None and share.level > 0
        is_left = has_share or whole.level > 0
        if is_left or is_due:
            whole.level -= amount
            if share is not None and has_share:
                share.level -= amount
        return is_left

    def _share(self, caller: str, now_ms: int) -> Bucket | None:
        if now_ms - self._swept_ms > ACTIVE_MS:
            self._swept_ms = now_ms
            self._shares = {name: each for name, each in self._shares.items() if now_ms - each.at_ms <= ACTIVE_MS}
        share = self._shares.get(caller)
        if share is None and len(self._shares) < MOST_SHARES:
            share = self._shares[caller] = Bucket(self._whole.per_s / (len(self._shares) + 1), now_ms)
        if share is not None:
            share.per_s = self._whole.per_s / len(self._shares)
            share.fill(now_ms)
        return share


class Places:
    """The open calls of one kind, by caller."""

    __slots__ = ("_by_caller", "total")

    def __init__(self) -> None:
        self.total = 0
        self._by_caller: Counter[str] = Counter()

    def have_room(self, caller: str, most: int) -> bool:
        """Whether the caller may have one more of so many."""
        if self.total < most - most // _KEPT:
            return True
        return self.total < most and self._by_caller[caller] < most / (len(self._by_caller) + 1)

    def take(self, caller: str, places: int = 1) -> None:
        """Count one more; with -1 one less."""
        self.total += places
        self._by_caller[caller] += places
        if not self._by_caller[caller]:
            del self._by_caller[caller]


# --- one meter ---------------------------------------------------------------------------------------


class Meter:
    """The use of one namespace, or of one caller, at this replica, against its quota.

    Refusals are the names of the quota's limits; empty if the request is let through and counted.
    """

    def __init__(
        self, quota: Quota, now_ms: int, scope: str, name: str, opened: dict[str, Places] | None = None
    ) -> None:
        self.quota = quota
        self.scope = scope
        """`NAMESPACE` or `CALLER`."""
        self.name = name
        self.open = defaultdict[str, Places](Places) if opened is None else opened
        """By the name of the limit; a watch is parked as well. They outlive a changed quota."""
        self._stored: defaultdict[str, Stored] = defaultdict(Stored)
        """By namespace; a namespace's own meter has one. As the last read showed it, and what was let in since."""
        self._made: defaultdict[str, dict[str, int]] = defaultdict(dict)
        """For a caller's meter: groups and topics that were made here, by namespace, with the number of reads since
        then that did not show them."""
        rates = (quota.requests_per_s, quota.requests_per_s, quota.bytes_per_s)
        self._requests, self._unconfirmed, self._bytes = (
            None if each is None else Turns(each, now_ms) for each in rates
        )
        """The second bucket is for heartbeats that no member has sent."""

    @property
    def is_idle(self) -> bool:
        """Whether it can be forgotten."""
        return not self._made and not any(places.total for places in self.open.values())

    def look(self, namespace: str, stored: Stored) -> bool:
        """Replace the counts of a namespace by those of the store. Returns whether there is anything to count."""
        if self.scope == CALLER:
            present, made = stored.groups | stored.topics, self._made.pop(namespace, {})
            made = {name: 0 if name in present else reads + 1 for name, reads in made.items()}
            if made := {name: reads for name, reads in made.items() if reads < _READS}:
                self._made[namespace] = made
            stored = stored.of_caller(self.name, made)
        self._stored[namespace] = stored
        if stored.groups or stored.topics or namespace in self._made:
            return True
        del self._stored[namespace]
        return False

    def refusal_of(
        self,
        caller: str,
        now_ms: int,
        request: m.Request | None = None,
        opening: tuple[str, ...] = (),
        *,
        is_unconfirmed: bool = False,
    ) -> str:
        """The limit that refuses an operation: a request that is no heartbeat, or another one. `opening` are the limits
        of open calls that it takes a place of. Heartbeats of unknown members are counted once they are answered.
        """
        turns, amount = (self._unconfirmed, 0) if is_unconfirmed else (self._requests, 1)
        if turns is not None and not turns.take(caller, amount, now_ms):
            return "requests_per_s"
        octets = 0
        if request is not None:
            octets, opening = payload_bytes(request), ("max_parked",) if may_park(request) else ()
            if self._bytes is not None and not self._bytes.take(caller, octets, now_ms):
                return "bytes_per_s"
        for name in opening:
            most = getattr(self.quota, name)
            if most is not None:
                places = self.open[name]
                # All places of a caller's own meter are the caller's.
                if not (places.total < most if self.scope == CALLER else places.have_room(caller, most)):
                    return name
        return "" if request is None or not self.quota.counts_stored else self._refusal_of_room(request, octets)

    def count_unconfirmed(self, caller: str, heartbeats: int, now_ms: int) -> None:
        """Count heartbeats that no member has sent, of one message: it costs no more than a burst.

        A process sends many when its members have expired all at once, and must not wait for long.
        """
        most = self.quota.requests_per_s
        if self._requests is not None and self._unconfirmed is not None and most is not None:
            self._unconfirmed.take(caller, min(heartbeats, most * BURST_S), now_ms, is_due=True)
            self._requests.take(caller, 1, now_ms, is_due=True)

    def _refusal_of_room(self, request: m.Request, octets: int) -> str:
        """The limit on stored things that refuses the request; otherwise its things are added."""
        quota, namespace, all_stored = self.quota, request.namespace, self._stored.values()
        stored = self._stored[namespace]
        joins, names, name = False, "groups", ""
        match request:
            case m.JoinGroup(member_id=""):
                joins = (request.group_id, request.group_instance_id) not in stored.instances
                name = request.group_id if joins else ""
            case m.CommitOffsets(is_standalone=True):  # It makes the group.
                name = request.group_id
            case m.PutTopic():
                names, name = "topics", request.topic
        is_new = bool(name) and name not in getattr(stored, names)
        for limit, is_asked, used in (
            ("max_stored_bytes", needs_room(request), lambda each: each.bytes),
            ("max_members", joins, lambda each: each.members),
            (f"max_{names}", is_new, lambda each: len(getattr(each, names))),
        ):
            most = getattr(quota, limit)
            if is_asked and most is not None and sum(map(used, all_stored)) >= most:
                return limit
        if is_new:
            getattr(stored, names).add(name)
            if self.scope == CALLER:
                self._made[namespace][name] = 0
        stored.members += joins
        stored.bytes += octets
        return ""


def may_park(request: m.Request) -> bool:
    """Whether it may hold memory here while it waits. A heartbeat holds less than its member does anyway."""
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
            return sum(len(name) + len(value) for name, value in request.attributes.items())
        case _:
            return 0


def needs_room(request: m.Request) -> bool:
    """Whether a full quota for stored bytes refuses it. Members go on, and progress without metadata is recorded."""
    match request:
        case m.JoinGroup(member_id=""):
            return True
        case m.JoinGroup() | m.SyncGroup():
            return payload_bytes(request) > REPLACED_BYTES
        case m.CommitOffsets():
            return request.is_standalone or any(offset.metadata for offset in request.offsets)
        case _:
            return isinstance(request, m.PutTopic)
