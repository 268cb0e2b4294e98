"""What can be done, and which of it each call of the protocol and each route does: one table for all transports."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from rota.protocol import messages as m


class Action(StrEnum):
    """What a rule allows or denies."""

    DESCRIBE = "describe"
    """Look at groups, their leaders and progress, at topics, and follow what happens."""
    JOIN = "join"
    """Be a member: join, sync, heartbeat, leave, and have one's generation signed."""
    COMMIT = "commit"
    """Record progress as a member."""
    ADMINISTER = "administer"
    """Remove members, delete groups and offsets, commit for an empty group, change topics."""
    JOURNAL = "journal"
    """Read whole shards of the journal: those of every namespace."""
    METRICS = "metrics"
    """Scrape the server's metrics."""


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


class Kind(StrEnum):
    """What an action is done to."""

    GROUP = "group"
    TOPIC = "topic"
    GROUPS = "groups"
    """Those of a namespace that the caller may look at."""
    TOPICS = "topics"
    SERVER = "server"


@dataclass(frozen=True, slots=True, eq=False)
class Need:
    """What a call asks for: an action on a kind of thing. There is one object for each; they compare by identity."""

    action: Action
    kind: Kind


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


_DESCRIBE_GROUP = Need(Action.DESCRIBE, Kind.GROUP)
_DESCRIBE_TOPIC = Need(Action.DESCRIBE, Kind.TOPIC)
_JOIN = Need(Action.JOIN, Kind.GROUP)
_COMMIT = Need(Action.COMMIT, Kind.GROUP)
_ADMINISTER_GROUP = Need(Action.ADMINISTER, Kind.GROUP)
_ADMINISTER_TOPIC = Need(Action.ADMINISTER, Kind.TOPIC)

NEEDS: Mapping[type, Need] = MappingProxyType(
    {
        m.JoinGroup: _JOIN,
        m.SyncGroup: _JOIN,
        m.Heartbeat: _JOIN,
        m.HeartbeatMany: _JOIN,
        m.LeaveGroup: _JOIN,
        m.CommitOffsets: _COMMIT,
        m.FetchOffsets: _DESCRIBE_GROUP,
        m.DeleteOffsets: _ADMINISTER_GROUP,
        m.VerifyFence: _DESCRIBE_GROUP,
        m.DescribeGroup: _DESCRIBE_GROUP,
        m.ListGroups: Need(Action.DESCRIBE, Kind.GROUPS),
        m.DeleteGroup: _ADMINISTER_GROUP,
        m.RebalanceGroup: _ADMINISTER_GROUP,
        m.FreezeGroup: _ADMINISTER_GROUP,
        m.QuarantineGroup: _ADMINISTER_GROUP,
        m.DrainMember: _JOIN,
        m.PlanGroup: _DESCRIBE_GROUP,
        m.GetLeader: _DESCRIBE_GROUP,
        m.PutTopic: _ADMINISTER_TOPIC,
        m.GetTopic: _DESCRIBE_TOPIC,
        m.DeleteTopic: _ADMINISTER_TOPIC,
        m.ForgetTopic: _ADMINISTER_TOPIC,
        m.ListTopics: Need(Action.DESCRIBE, Kind.TOPICS),
    }
)
"""By request type. `need_of` knows the requests that ask for more when a field says so."""

_MAY_ASK_FOR_MORE: Mapping[type, Need] = MappingProxyType(
    {m.LeaveGroup: _ADMINISTER_GROUP, m.CommitOffsets: _ADMINISTER_GROUP, m.VerifyFence: _JOIN}
)
"""What a field of these may make them ask for instead."""

POSSIBLE_NEEDS: Mapping[type, tuple[Need, ...]] = MappingProxyType(
    {each: (need, *(more for kind, more in _MAY_ASK_FOR_MORE.items() if kind is each)) for each, need in NEEDS.items()}
)
"""All that a request of a type may ask for, whatever its fields say: known before it is read."""

WATCH = _DESCRIBE_GROUP
LOCATE = _DESCRIBE_GROUP
READ_JOURNAL = Need(Action.JOURNAL, Kind.SERVER)
SCRAPE = Need(Action.METRICS, Kind.SERVER)


def need_of(request: m.Request) -> Need:
    """What this request asks for."""
    if type(request) not in _MAY_ASK_FOR_MORE:
        return NEEDS[type(request)]
    match request:
        case m.LeaveGroup(by_admin=True):
            return _ADMINISTER_GROUP
        case m.CommitOffsets(is_standalone=True):
            return _ADMINISTER_GROUP
        case m.VerifyFence(sign=True):
            return _JOIN
        case _:
            return NEEDS[type(request)]


def is_administrative(request: m.Request) -> bool:
    """Whether it belongs into the audit trail."""
    return need_of(request).action is Action.ADMINISTER
