"""Roles, resources, and the needs of what is no request: decisions about permissions name them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from rota.protocol.calls import DESCRIBE_GROUP, Action, Kind, Need, need_of
from rota.protocol.messages import Request

__all__ = [
    "LOCATE",
    "READ_JOURNAL",
    "ROLES",
    "SCRAPE",
    "WATCH",
    "Action",
    "Kind",
    "Need",
    "Resource",
    "is_administrative",
    "need_of",
    "role_of",
]

ROLES: Mapping[str, frozenset[Action]] = MappingProxyType(
    {
        "viewer": frozenset({Action.DESCRIBE}),
        "member": frozenset({Action.DESCRIBE, Action.JOIN, Action.COMMIT}),
        "operator": frozenset({Action.DESCRIBE, Action.JOIN, Action.COMMIT, Action.ADMINISTER}),
        "admin": frozenset(Action),
    }
)
"""Names for sets of actions, to be used wherever actions are listed."""


def role_of(actions: Collection[str]) -> str:
    """The role that has these actions and no others; empty where none does."""
    return next((role for role, its in ROLES.items() if its == set(actions)), "")


@dataclass(frozen=True, slots=True)
class Resource:
    """The target of an action. Lists have no name, the server has no namespace either."""

    kind: Kind
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        if self.kind is Kind.SERVER:
            return "the server"
        if self.kind in (Kind.GROUPS, Kind.TOPICS):
            return f"the {self.kind} of namespace {self.namespace}"
        return f"{self.kind} {self.namespace}/{self.name}"


WATCH = DESCRIBE_GROUP
LOCATE = DESCRIBE_GROUP
READ_JOURNAL = Need(Action.JOURNAL, Kind.SERVER)
SCRAPE = Need(Action.METRICS, Kind.SERVER)


def is_administrative(request: Request) -> bool:
    """Whether it belongs into the audit trail."""
    return need_of(request).action is Action.ADMINISTER
