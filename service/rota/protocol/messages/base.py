"""What requests have in common, so that a rule about them names a type instead of looking for an attribute."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

from msgspec import NODEFAULT, Struct
from msgspec.structs import fields, force_setattr

from rota.protocol.errors import ErrorCode
from rota.protocol.limits import MAX_WAIT_MS
from rota.protocol.values import INTERNAL

NO_GENERATION = -1
"""Kafka's generation of a caller that is in no generation."""


class Act(Struct, frozen=True):
    """An administrator's action for the audit trail: the actor, its note and its origin. The guard sets it."""

    actor: str
    note: str = ""
    origin: str = ""


Author = Annotated[Act | None, INTERNAL]
Subject = Annotated[str, INTERNAL]


class Request(Struct, frozen=True):
    """A request of the protocol. `rota.protocol.calls` has its reply and how it travels."""

    namespace: str

    @property
    def key(self) -> str:
        """The name of the group or topic that the request is about; empty if it is about a whole namespace."""
        return ""


class Reply(Struct, frozen=True):
    """The outcome is in `error`; the other fields hold their empty values when it is not `NONE`."""

    error: ErrorCode = ErrorCode.NONE
    detail: str = ""


class Part(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of a request, such as a member that leaves. It is on the wire as it is.

    An unknown name is refused, because a misspelt name must not count as absent. Null counts as absent.
    """

    def __post_init__(self) -> None:
        for name, default in _defaults(type(self)):
            if getattr(self, name) is None:
                force_setattr(self, name, default)


@cache
def _defaults(part: type[Part]) -> tuple[tuple[str, Any], ...]:
    """The fields that have a default other than None."""
    return tuple((each.name, each.default) for each in fields(part) if each.default not in (None, NODEFAULT))


class GroupRequest(Request, frozen=True):
    """A request to one group, whose shard decides it."""

    group_id: str

    @property
    def key(self) -> str:
        return self.group_id


class TopicRequest(Request, frozen=True):
    """A request about one topic: the shard of the namespace's topics decides it."""

    topic: str

    @property
    def key(self) -> str:
        return self.topic


class NamespaceRequest(Request, frozen=True):
    """A request about all groups or all topics of a namespace."""


class Parkable:
    """A request that the coordinator may keep waiting; see `parks_for_ms`."""

    __slots__ = ()

    wait_ms: int


def parks_for_ms(request: object) -> int:
    """For how long the coordinator may keep `request` waiting, in milliseconds; 0 where it is answered at once."""
    return min(request.wait_ms, MAX_WAIT_MS) if isinstance(request, Parkable) else 0


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
