"""Quotas: how much of the service one namespace, and one caller, may take, so that the others keep theirs.

Each operation asks the meters (`rota.access.meter`) of its caller and, where it is about one, of its namespace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rota.access.rules import ANONYMOUS_SUBJECT, ANY
from rota.access.sources import source_of
from rota.protocol import messages as m

REPLACED_BYTES = 1_024
"""A member of a full namespace may still rejoin and sync with so much, as that replaces its former bytes."""


@dataclass(frozen=True, slots=True)
class Quota:
    """What a namespace or a caller may take; None for as much as there is.

    Stored groups, topics and bytes count in the whole store. Open calls, and both rates, count at each replica.
    """

    max_groups: int | None = None
    max_members: int | None = None
    max_topics: int | None = None
    max_stored_bytes: int | None = None
    max_parked: int | None = None
    max_watches: int | None = None
    max_streams: int | None = None
    requests_per_s: int | None = None
    bytes_per_s: int | None = None

    @property
    def counts_stored(self) -> bool:
        """Whether the store must be read for it."""
        stored = (self.max_groups, self.max_members, self.max_topics, self.max_stored_bytes)
        return any(most is not None for most in stored)

    def explain(self, name: str) -> str:
        """The text of a refusal by the limit of this name."""
        return f"more than {getattr(self, name)} {_COUNTED[name]}"


_COUNTED = {
    "max_groups": "groups",
    "max_members": "members",
    "max_topics": "topics",
    "max_stored_bytes": "bytes stored",
    "max_parked": "parked calls",
    "max_watches": "watches",
    "max_streams": "streams",
    "requests_per_s": "requests a second",
    "bytes_per_s": "bytes a second",
}
OF_CALLERS_ALONE = ("max_streams",)
"""A stream belongs to no namespace."""


@dataclass(frozen=True, slots=True)
class Held:
    """What members of one caller are in a namespace: their groups, their number, their metadata and assignments."""

    groups: frozenset[str] = frozenset()
    members: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Stored:
    """What a namespace has in the store, or what of it is one caller's.

    `instances` are its static members, as (group id, instance id); `bytes` are those of metadata and assignments of
    members, of topics and of offsets; `offset_bytes` are those of offsets, by group; `by_caller` is by subject.
    """

    groups: frozenset[str] = frozenset()
    members: int = 0
    instances: frozenset[tuple[str, str]] = frozenset()
    topics: frozenset[str] = frozenset()
    bytes: int = 0
    offset_bytes: Mapping[str, int] = field(default_factory=dict)
    by_caller: Mapping[str, Held] = field(default_factory=dict)

    def of_caller(self, subject: str, groups: frozenset[str], topics: frozenset[str]) -> Stored:
        """The caller's part: the bytes of its members, and the groups and topics that it made."""
        held, made = self.by_caller.get(subject, Held()), groups & self.groups
        octets = held.bytes + sum(self.offset_bytes.get(group, 0) for group in made)
        return Stored(held.groups | made, held.members, self.instances, topics & self.topics, octets)


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
            return sum(len(name) + len(value) for name, value in request.attributes)
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
