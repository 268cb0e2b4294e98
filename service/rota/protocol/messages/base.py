"""What requests have in common, so that a rule about them names a type instead of looking for an attribute."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from rota.protocol.errors import ErrorCode
from rota.protocol.limits import MAX_WAIT_MS

NO_GENERATION = -1
"""Kafka's generation of a caller that is in no generation."""


class Act(Struct, frozen=True):
    """An administrator's action for the audit trail: the actor, its note and its origin. The guard sets it."""

    actor: str
    note: str = ""
    origin: str = ""


class Request(Struct, frozen=True):
    """A request of the protocol. `rota.protocol.calls` has its reply and how it travels."""

    namespace: str

    @property
    def key(self) -> str:
        """The name whose shard decides the request; empty if every shard has a part of the answer."""
        return ""


class Reply(Struct, frozen=True):
    """The outcome is in `error`; the other fields hold their empty values when it is not `NONE`."""

    error: ErrorCode = ErrorCode.NONE
    detail: str = ""


class GroupRequest(Request, frozen=True):
    """A request to one group: the shard of its `key` decides it."""

    group_id: str

    @property
    def key(self) -> str:
        return self.group_id


class TopicRequest(Request, frozen=True):
    """A request about one topic of a namespace: the shard of its `key` decides it."""

    topic: str

    @property
    def key(self) -> str:
        return self.topic


class NamespaceRequest(Request, frozen=True):
    """A request about a whole namespace: every shard has a part of the answer, so it has no key."""


class Parkable:
    """A request that the coordinator may keep waiting; see `parks_for_ms`. None: for its kind's `default_wait_ms`."""

    __slots__ = ()

    default_wait_ms: ClassVar[int] = 0
    wait_ms: int | None


def parks_for_ms(request: object) -> int:
    """For how long the coordinator may keep `request` waiting, in milliseconds; 0 where it is answered at once."""
    if not isinstance(request, Parkable):
        return 0
    wait_ms = request.wait_ms
    if wait_ms is None:
        wait_ms = request.default_wait_ms
    return wait_ms if wait_ms < MAX_WAIT_MS else MAX_WAIT_MS


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
