"""What one namespace, or one caller, takes at this replica, against its quota."""

from __future__ import annotations

from collections import Counter

from rota.access.buckets import BURST_S, Turns
from rota.access.quotas import Quota, Stored, may_park, needs_room, payload_bytes
from rota.protocol import messages as m

_Name = tuple[str, str]
"""A namespace, and a group or topic in it."""
_NOTHING = Stored()
_LOOKS = 2
"""A new group or topic is forgotten where the store does not show it at the second look."""
_OPEN = ("max_parked", "max_watches", "max_streams")
_KEPT = 10
"""One of so many places of a namespace is kept for callers that have less than an equal share of them."""


class Places:
    """What callers hold open of one kind."""

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


class Meter:
    """One meter. Refusals are the names of the quota's limits; empty where the request is let through and counted.

    `payer` is the caller that the meter belongs to; empty for a namespace's.
    """

    def __init__(self, quota: Quota, now_ms: int, payer: str = "", opened: dict[str, Places] | None = None) -> None:
        self.quota = quota
        self.payer = payer
        self.open = {name: Places() for name in _OPEN} if opened is None else opened
        """By the name of the limit; a watch is parked as well. They outlive a changed quota."""
        self._stored: dict[str, Stored] = {}
        """By namespace; a namespace's own meter has one."""
        self._joined: Counter[_Name] = Counter()
        """Newcomers that were let in since the store was looked at, by group; none in those that a commit made."""
        self._topics: set[_Name] = set()
        self._brought: Counter[str] = Counter()
        """Bytes since the store was looked at, by namespace."""
        self._made: dict[_Name, int] = {}
        """Groups and topics that were made here, with the number of looks since then that did not show them."""
        requests, octets = quota.requests_per_s, quota.bytes_per_s
        self._requests = Turns(requests, now_ms) if requests is not None else None
        self._strangers = Turns(requests, now_ms) if requests is not None else None
        """A second bucket, for heartbeats that no member has sent."""
        self._bytes = Turns(octets, now_ms) if octets is not None else None

    @property
    def is_idle(self) -> bool:
        """Whether it can be forgotten."""
        return not self._made and not any(places.total for places in self.open.values())

    def look(self, namespace: str, stored: Stored) -> bool:
        """Take in what the store has in a namespace now; a caller's meter, what of it is the caller's.

        Returns whether there is anything to count.
        """
        if self.payer:
            self._forget_unmade(namespace, stored.groups | stored.topics)
            made = frozenset(name for place, name in self._made if place == namespace)
            stored = stored.of_caller(self.payer, made, made)
        self._stored[namespace] = stored
        self._joined = Counter({each: count for each, count in self._joined.items() if each[0] != namespace})
        self._topics = {each for each in self._topics if each[0] != namespace}
        del self._brought[namespace]
        has_some = bool(stored.groups or stored.topics or any(place == namespace for place, _ in self._made))
        if not has_some:
            del self._stored[namespace]
        return has_some

    def refusal_of(self, caller: str, request: m.Request, now_ms: int) -> str:
        """The limit that refuses a request that is no heartbeat."""
        octets = payload_bytes(request)
        return (
            self.refusal_of_call(caller, now_ms)
            or self._refusal_of_bytes(caller, octets, now_ms)
            or (self.refusal_of_opening(caller, "max_parked") if may_park(request) else "")
            or self._refusal_of_room(request)
            or self._refusal_of_new(request)
            or self._bring(request.namespace, octets)
        )

    def refusal_of_call(self, caller: str, now_ms: int) -> str:
        """The limit that refuses whatever is one request."""
        return "" if self._requests is None or self._requests.take(caller, 1, now_ms) else "requests_per_s"

    def refusal_of_opening(self, caller: str, *names: str) -> str:
        """The first of these limits that is used up by open calls."""
        for name in names:
            most, places = getattr(self.quota, name), self.open[name]
            # All places of a caller's own meter are the caller's.
            if most is not None and not (places.total < most if self.payer else places.have_room(caller, most)):
                return name
        return ""

    def refusal_of_strangers(self, caller: str, now_ms: int) -> str:
        """The limit that refuses heartbeats of members that are not known, before they are answered."""
        return "" if self._strangers is None or self._strangers.has_some(caller, now_ms) else "requests_per_s"

    def count_strangers(self, caller: str, heartbeats: int, now_ms: int) -> None:
        """Count heartbeats that no member has sent, of one message: it costs no more than a burst.

        A process sends many when its members have expired all at once, and must not wait for long.
        """
        if self._requests is not None and self._strangers is not None and self.quota.requests_per_s is not None:
            self._strangers.spend(caller, min(heartbeats, self.quota.requests_per_s * BURST_S), now_ms)
            self._requests.spend(caller, 1, now_ms)

    # --- inside ------------------------------------------------------------------------------------

    def _refusal_of_bytes(self, caller: str, octets: int, now_ms: int) -> str:
        return "" if self._bytes is None or self._bytes.take(caller, octets, now_ms) else "bytes_per_s"

    def _refusal_of_room(self, request: m.Request) -> str:
        most = self.quota.max_stored_bytes
        if most is None or not needs_room(request):
            return ""
        return "max_stored_bytes" if self._total("bytes") + self._brought.total() >= most else ""

    def _refusal_of_new(self, request: m.Request) -> str:
        match request:
            case m.JoinGroup():
                return self._refusal_of_newcomer(request)
            case m.CommitOffsets(is_standalone=True):
                return self._refusal_of_group((request.namespace, request.group_id))
            case m.PutTopic():
                return self._refusal_of_topic((request.namespace, request.topic))
            case _:
                return ""

    def _refusal_of_newcomer(self, request: m.JoinGroup) -> str:
        stored = self._stored.get(request.namespace, _NOTHING)
        if request.member_id or (request.group_id, request.group_instance_id) in stored.instances:
            return ""
        most = self.quota.max_members
        if most is not None and self._total("members") + self._joined.total() >= most:
            return "max_members"
        group = (request.namespace, request.group_id)
        refusal = self._refusal_of_group(group)
        if not refusal and self.quota.counts_stored:
            self._joined[group] += 1
        return refusal

    def _refusal_of_group(self, group: _Name) -> str:
        """A caller that joins a group makes it, and so does a commit without being a member."""
        if not self.quota.counts_stored or group in self._joined or self._has("groups", group):
            return ""
        most = self.quota.max_groups
        opened = sum(1 for name in self._joined if not self._has("groups", name))
        if most is not None and self._count("groups") + opened >= most:
            return "max_groups"
        self._joined[group] = 0
        self._make(group)
        return ""

    def _refusal_of_topic(self, topic: _Name) -> str:
        if not self.quota.counts_stored or topic in self._topics or self._has("topics", topic):
            return ""
        most = self.quota.max_topics
        if most is not None and self._count("topics") + len(self._topics) >= most:
            return "max_topics"
        self._topics.add(topic)
        self._make(topic)
        return ""

    def _make(self, name: _Name) -> None:
        if self.payer:
            self._made[name] = 0

    def _bring(self, namespace: str, octets: int) -> str:
        if self.quota.max_stored_bytes is not None:
            self._brought[namespace] += octets
        return ""

    def _has(self, kind: str, name: _Name) -> bool:
        return name[1] in getattr(self._stored.get(name[0], _NOTHING), kind)

    def _count(self, kind: str) -> int:
        return sum(len(getattr(stored, kind)) for stored in self._stored.values())

    def _total(self, kind: str) -> int:
        return sum(getattr(stored, kind) for stored in self._stored.values())

    def _forget_unmade(self, namespace: str, names: frozenset[str]) -> None:
        for made, looks in tuple(self._made.items()):
            if made[0] != namespace:
                continue
            self._made[made] = 0 if made[1] in names else looks + 1
            if self._made[made] >= _LOOKS:
                del self._made[made]
