"""The table of calls: one row for each request, with its reply, its way over HTTP and gRPC, and its permission.

The routes, the rpcs, the access rules and the API's document are made of it. A new call is a request and a reply in
`rota.protocol.messages`, a row here, and a handler in `rota.core.group.shard`; one over gRPC is also in `proto/`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType

from rota.protocol import messages as m
from rota.protocol.errors import ErrorCode as E
from rota.protocol.messages import Reply, Request

COORDINATOR = "rota.v1.GroupCoordinator"
ADMIN = "rota.v1.Admin"

NAMESPACE_PATH = "/v1/namespaces/{namespace}"
GROUP_PATH = NAMESPACE_PATH + "/groups/{group_id}"
TOPIC_PATH = NAMESPACE_PATH + "/topics/{topic}"
MEMBER_PATH = GROUP_PATH + "/members/{member_id}"

_PARAMETER = re.compile(r"\{(\w+)\}")


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
    """The permission that a call needs: an action on a kind of thing. Each is one object; they compare by identity."""

    action: Action
    kind: Kind


DESCRIBE_GROUP = Need(Action.DESCRIBE, Kind.GROUP)
DESCRIBE_TOPIC = Need(Action.DESCRIBE, Kind.TOPIC)
LIST_GROUPS = Need(Action.DESCRIBE, Kind.GROUPS)
LIST_TOPICS = Need(Action.DESCRIBE, Kind.TOPICS)
JOIN = Need(Action.JOIN, Kind.GROUP)
COMMIT = Need(Action.COMMIT, Kind.GROUP)
ADMINISTER_GROUP = Need(Action.ADMINISTER, Kind.GROUP)
ADMINISTER_TOPIC = Need(Action.ADMINISTER, Kind.TOPIC)


class Tag(StrEnum):
    """The subjects by which the API's document is ordered."""

    MEMBERSHIP = "membership"
    OFFSETS = "offsets"
    FENCES = "fences"
    GROUPS = "groups"
    TOPICS = "topics"
    EVENTS = "events"
    ACCESS = "access"
    SERVER = "server"


@dataclass(frozen=True)
class Call:
    """A request with its reply, the permission that it needs, and its way. A call between replicas alone has no way."""

    request: type[Request]
    reply: type[Reply]
    need: Need
    method: str = ""
    path: str = ""
    service: str = ""
    """The gRPC service, whose rpc has the name of the request; empty if no rpc of this name carries it alone."""
    operation: str = ""
    tag: Tag = Tag.GROUPS
    summary: str = ""
    errors: tuple[E, ...] = ()
    """Errors beside those that every call may have."""
    more: tuple[str, Need] | None = None
    """An attribute of the request, and the permission that the request needs instead if the attribute is true."""

    @cached_property
    def path_names(self) -> tuple[str, ...]:
        """The fields that travel in the path."""
        return tuple(_PARAMETER.findall(self.path))

    @property
    def has_body(self) -> bool:
        """Whether the other fields travel in a body; if not, in the query string."""
        return self.method in ("POST", "PUT")

    @property
    def needs(self) -> tuple[Need, ...]:
        """All permissions that a request of this kind may need, whatever its fields say."""
        return (self.need,) if self.more is None else (self.need, self.more[1])


_MEMBER_ERRORS = (E.INVALID_GROUP_ID, E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID, E.ILLEGAL_GENERATION)
_GROUP_ERRORS = (E.INVALID_GROUP_ID, E.GROUP_ID_NOT_FOUND)

_ALL = (
    Call(
        *(m.JoinGroup, m.JoinReply, JOIN, "POST", GROUP_PATH + "/join", COORDINATOR, "groupsJoin", Tag.MEMBERSHIP),
        "Join a group. Parks until the join phase is over, or answers pending.",
        (
            *(E.INVALID_GROUP_ID, E.MEMBER_ID_REQUIRED, E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID),
            *(E.INCONSISTENT_GROUP_PROTOCOL, E.INVALID_SESSION_TIMEOUT, E.GROUP_MAX_SIZE_REACHED),
            E.REBALANCE_IN_PROGRESS,
        ),
    ),
    Call(
        *(m.SyncGroup, m.SyncReply, JOIN, "POST", GROUP_PATH + "/sync", COORDINATOR, "groupsSync", Tag.MEMBERSHIP),
        "Fetch this member's assignment; the leader sends those of all members. Parks until the leader has synced.",
        (*_MEMBER_ERRORS, E.REBALANCE_IN_PROGRESS, E.ASSIGNMENT_FAILED, E.INCONSISTENT_GROUP_PROTOCOL),
    ),
    Call(
        *(m.Heartbeat, m.HeartbeatReply, JOIN, "POST", GROUP_PATH + "/heartbeat", COORDINATOR, "groupsHeartbeat"),
        Tag.MEMBERSHIP,
        "A sign of life, of one member or of several. With wait_ms, answered the moment the group rebalances.",
        (*_MEMBER_ERRORS, E.REBALANCE_IN_PROGRESS),
    ),
    Call(m.HeartbeatMany, m.HeartbeatManyReply, JOIN),
    Call(
        *(m.LeaveGroup, m.LeaveReply, JOIN, "POST", GROUP_PATH + "/leave", COORDINATOR, "groupsLeave", Tag.MEMBERSHIP),
        "Leave at once; answered per member.",
        (E.INVALID_GROUP_ID, E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID),
        more=("by_admin", ADMINISTER_GROUP),
    ),
    Call(
        *(m.CommitOffsets, m.CommitReply, COMMIT, "POST", GROUP_PATH + "/offsets", COORDINATOR, "offsetsCommit"),
        Tag.OFFSETS,
        "Record progress; answered per partition.",
        (*_MEMBER_ERRORS, E.REBALANCE_IN_PROGRESS, E.GROUP_ID_NOT_FOUND, E.OFFSET_METADATA_TOO_LARGE),
        more=("is_standalone", ADMINISTER_GROUP),
    ),
    Call(
        *(m.FetchOffsets, m.FetchReply, DESCRIBE_GROUP, "GET", GROUP_PATH + "/offsets", COORDINATOR, "offsetsFetch"),
        Tag.OFFSETS,
        "Read progress; needs no membership.",
        _GROUP_ERRORS,
    ),
    Call(
        *(m.DeleteOffsets, m.DeleteOffsetsReply, ADMINISTER_GROUP, "DELETE", GROUP_PATH + "/offsets", ADMIN),
        *("offsetsDelete", Tag.OFFSETS, "Forget progress; answered per partition."),
        (*_GROUP_ERRORS, E.NON_EMPTY_GROUP, E.GROUP_SUBSCRIBED_TO_TOPIC),
    ),
    Call(
        *(m.VerifyFence, m.FenceReply, DESCRIBE_GROUP, "POST", GROUP_PATH + "/fence", COORDINATOR, "fenceVerify"),
        Tag.FENCES,
        "Is this fencing token, or this generation, still the current one, and this member in it?",
        (*_GROUP_ERRORS, E.UNKNOWN_MEMBER_ID, E.ILLEGAL_GENERATION, E.MEMBER_ID_REQUIRED),
        more=("sign", JOIN),
    ),
    Call(
        *(m.GetLeader, m.LeaderReply, DESCRIBE_GROUP, "GET", GROUP_PATH + "/leader", COORDINATOR, "leaderGet"),
        Tag.FENCES,
        "The leader and its fencing token. With wait_ms, waits for a leader of a generation after after_generation.",
        _GROUP_ERRORS,
    ),
    Call(
        *(m.DescribeGroup, m.DescribeReply, DESCRIBE_GROUP, "GET", GROUP_PATH, ADMIN, "groupsDescribe", Tag.GROUPS),
        "A group as it stands, with its members and the reason of its last rebalance.",
        (*_GROUP_ERRORS, E.GROUP_DELETED),
    ),
    Call(
        *(m.DeleteGroup, m.DeleteGroupReply, ADMINISTER_GROUP, "DELETE", GROUP_PATH, ADMIN, "groupsDelete", Tag.GROUPS),
        "Delete an Empty group and its offsets. Its generations go on counting if it ever comes back.",
        (*_GROUP_ERRORS, E.NON_EMPTY_GROUP),
    ),
    Call(
        *(m.RebalanceGroup, m.RebalanceReply, ADMINISTER_GROUP, "POST", GROUP_PATH + "/rebalance", ADMIN),
        *("groupsRebalance", Tag.GROUPS),
        "Start a rebalance; with step_down under another leader. No member is removed.",
        _GROUP_ERRORS,
    ),
    Call(
        *(m.FreezeGroup, m.FreezeReply, ADMINISTER_GROUP, "POST", GROUP_PATH + "/freeze", ADMIN, "groupsFreeze"),
        Tag.GROUPS,
        "Start no rebalance for a while that could as well start later: newcomers, changes of topics and candidates of "
        "a higher priority wait. Members that leave or expire are excepted. for_ms of 0 ends it.",
        _GROUP_ERRORS,
    ),
    Call(
        *(m.QuarantineGroup, m.QuarantineReply, ADMINISTER_GROUP, "POST", GROUP_PATH + "/quarantine", ADMIN),
        *("groupsQuarantine", Tag.GROUPS),
        "Set the rule by which units that fell their holders in a row are left out of assignments, and release such "
        "units. Entries that are left out stay as they are.",
        _GROUP_ERRORS,
    ),
    Call(
        *(m.DrainMember, m.DrainReply, JOIN, "POST", GROUP_PATH + "/drain", ADMIN, "groupsDrain", Tag.GROUPS),
        "May a member leave now, as one of at most max_leaving at once? It removes nothing: the member leaves then.",
        (*_GROUP_ERRORS, E.UNKNOWN_MEMBER_ID, E.FENCED_INSTANCE_ID),
    ),
    Call(
        *(m.ListGroups, m.ListReply, LIST_GROUPS, "GET", NAMESPACE_PATH + "/groups", ADMIN, "groupsList", Tag.GROUPS),
        "Groups of a namespace, ordered by id, in pages.",
    ),
    Call(
        *(m.PutTopic, m.TopicReply, ADMINISTER_TOPIC, "PUT", TOPIC_PATH, ADMIN, "topicsPut", Tag.TOPICS),
        "Register a topic, or let it grow.",
        (E.INVALID_PARTITIONS,),
    ),
    Call(
        *(m.GetTopic, m.TopicReply, DESCRIBE_TOPIC, "GET", TOPIC_PATH, ADMIN, "topicsGet", Tag.TOPICS),
        "A topic's number of partitions and its attributes; with wait_ms, once it is another than the one known.",
        (E.UNKNOWN_TOPIC,),
    ),
    Call(
        *(m.DeleteTopic, m.TopicReply, ADMINISTER_TOPIC, "DELETE", TOPIC_PATH, ADMIN, "topicsDelete", Tag.TOPICS),
        "Delete a topic, and the progress that groups have in it. A new topic of this name begins without progress.",
        (E.UNKNOWN_TOPIC,),
    ),
    Call(m.ForgetTopic, m.TopicReply, ADMINISTER_TOPIC),
    Call(
        *(m.ListTopics, m.ListTopicsReply, LIST_TOPICS, "GET", NAMESPACE_PATH + "/topics", ADMIN, "topicsList"),
        Tag.TOPICS,
        "Topics of a namespace, ordered by name, in pages.",
    ),
)
CALLS: Mapping[type[Request], Call] = MappingProxyType({call.request: call for call in _ALL})
REPLY_OF: Mapping[type, type] = MappingProxyType({call.request: call.reply for call in _ALL})


def need_of(request: Request) -> Need:
    """The permission that this request needs."""
    call = CALLS[type(request)]
    if call.more is not None and getattr(request, call.more[0]):
        return call.more[1]
    return call.need


def refuse(request: Request, error: E, detail: str) -> Reply:
    """The reply that refuses `request` before a group has decided anything."""
    return CALLS[type(request)].reply(error, detail)
