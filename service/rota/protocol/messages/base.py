"""What requests have in common, so that a rule about them names a type instead of looking for an attribute."""

from __future__ import annotations

from dataclasses import dataclass

NO_GENERATION = -1
"""Kafka's generation of a caller that is in no generation."""


@dataclass(frozen=True, slots=True)
class Act:
    """An administrator's action for the audit trail: the actor, its note and its origin. The guard sets it."""

    actor: str
    note: str = ""
    origin: str = ""


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """A request to one group: the shard of its `key` decides it."""

    namespace: str
    group_id: str

    @property
    def key(self) -> str:
        return self.group_id


@dataclass(frozen=True, slots=True)
class TopicRequest:
    """A request about one topic of a namespace: the shard of its `key` decides it."""

    namespace: str
    topic: str

    @property
    def key(self) -> str:
        return self.topic


@dataclass(frozen=True, slots=True)
class NamespaceRequest:
    """A request about a whole namespace: every shard has a part of the answer, so it has no key."""

    namespace: str

    @property
    def key(self) -> str:
        return ""


class Parkable:
    """A request that the coordinator may keep waiting for `wait_ms`; with None for as long as its kind may wait."""

    __slots__ = ()

    wait_ms: int | None


class InMembersName:
    """A request in the name of a member. Only the caller that joined as this member may send it, or an administrator.

    `subject` is the caller as access rules name it. The guard sets it, and it travels to the shard's owner, which knows
    the caller of each member. Empty: not checked, because the server has no rules or the caller is an administrator.
    """

    __slots__ = ()

    subject: str


class Audited:
    """A request that may be an administrator's: then `act` names the author."""

    __slots__ = ()

    act: Act | None
