"""Requests and replies of the group protocol (protocol.md §3), the same for every transport.

A request names its group by `namespace` and `group_id`. A reply carries its outcome in `error`;
the other fields hold their empty values when `error` is not `NONE`. Times are milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rota.protocol.errors import ErrorCode

NO_GENERATION = -1
"""Kafka's generation of somebody who is not in a generation."""


@dataclass(frozen=True, slots=True)
class Act:
    """An administrator's action for the audit trail: the actor, its note and its origin. The guard sets it."""

    actor: str
    note: str = ""
    origin: str = ""


# --- membership -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Protocol:
    """One way to agree that a member offers, with the metadata it would bring."""

    name: str
    metadata: bytes = b""


@dataclass(frozen=True, slots=True)
class JoinGroup:
    """Ask to be in the next generation. Parks until the join phase is over, at most `wait_ms`.

    `new_member_id` is what the coordinator may give to a newcomer; it is drawn by the runtime,
    because the core draws nothing at random. `host` is where the request came from, for people.
    """

    namespace: str
    group_id: str
    protocol_type: str
    protocols: tuple[Protocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    member_id: str = ""
    group_instance_id: str | None = None
    client_id: str = ""
    host: str = ""
    reason: str = ""
    wait_ms: int | None = None
    new_member_id: str = ""


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """One line of the list that the leader gets: the metadata is that of the chosen protocol."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinReply:
    """The generation a member is in. `pending`: the join phase goes on, call again with `member_id`."""

    error: ErrorCode = ErrorCode.NONE
    detail: str = ""
    pending: bool = False
    member_id: str = ""
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class SyncGroup:
    """Fetch this member's assignment; the leader also brings everybody's, or the reason it has none."""

    namespace: str
    group_id: str
    member_id: str
    generation_id: int
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()
    leader_error: str | None = None
    wait_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SyncReply:
    """A member's assignment in a generation. `pending`: the leader has not synced yet, call again."""

    error: ErrorCode = ErrorCode.NONE
    detail: str = ""
    pending: bool = False
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A sign of life. With `wait_ms` it parks and answers the moment the group leaves the generation."""

    namespace: str
    group_id: str
    member_id: str
    generation_id: int
    group_instance_id: str | None = None
    wait_ms: int | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """Where the group stands. A `generation_id` above the member's own means: sync again (resync)."""

    error: ErrorCode = ErrorCode.NONE
    detail: str = ""
    generation_id: int = NO_GENERATION
    state: str = ""


@dataclass(frozen=True, slots=True)
class MemberHeartbeat:
    """One member's sign of life among several."""

    member_id: str
    generation_id: int
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatMany:
    """Signs of life of several members of one group, who all wait in one process. Never parks."""

    namespace: str
    group_id: str
    members: tuple[MemberHeartbeat, ...]


@dataclass(frozen=True, slots=True)
class HeartbeatError:
    """What `HeartbeatReply.error` is to a single heartbeat."""

    member_id: str
    error: ErrorCode
    detail: str = ""


@dataclass(frozen=True, slots=True)
class HeartbeatManyReply:
    """Where the group stands. Members that are not in `errors` live."""

    error: ErrorCode = ErrorCode.NONE
    detail: str = ""
    generation_id: int = NO_GENERATION
    state: str = ""
    errors: tuple[HeartbeatError, ...] = ()


@dataclass(frozen=True, slots=True)
class LeavingMember:
    """Who leaves: by member id, or by instance id alone (an administrator's way).

    `silent_for_ms`: only if the member has not been heard of for that long, and `INVALID_REQUEST` if it has. Set
    by a transport that lost its connection to the member; not on the wire.
    """

    member_id: str = ""
    group_instance_id: str | None = None
    reason: str = ""
    silent_for_ms: int | None = None


@dataclass(frozen=True, slots=True)
class LeaveGroup:
    """Leave at once. `by_admin` marks a removal by somebody else (RemoveMembers)."""

    namespace: str
    group_id: str
    members: tuple[LeavingMember, ...]
    by_admin: bool = False
    act: Act | None = None


@dataclass(frozen=True, slots=True)
class LeftMember:
    member_id: str
    group_instance_id: str | None
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class LeaveReply:
    error: ErrorCode = ErrorCode.NONE
    detail: str = ""
    members: tuple[LeftMember, ...] = ()


# --- offsets ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OffsetToCommit:
    topic: str
    partition: int
    offset: int
    leader_epoch: int | None = None
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """Record progress. Generation -1 without a member is an administrator's commit to an Empty group."""

    namespace: str
    group_id: str
    generation_id: int
    offsets: tuple[OffsetToCommit, ...]
    member_id: str = ""
    group_instance_id: str | None = None
    act: Act | None = None


@dataclass(frozen=True, slots=True)
class PartitionResult:
    topic: str
    partition: int
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class CommitReply:
    error: ErrorCode = ErrorCode.NONE
    detail: str = ""
    partitions: tuple[PartitionResult, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicPartitions:
    topic: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FetchOffsets:
    """Read progress; `topics=None` reads all there is. Needs no membership."""

    namespace: str
    group_id: str
    topics: tuple[TopicPartitions, ...] | None = None


@dataclass(frozen=True, slots=True)
class FetchedOffset:
    """A partition's progress; `offset` is -1 where nothing was committed."""

    topic: str
    partition: int
    offset: int = -1
    leader_epoch: int | None = None
    metadata: str = ""
    committed_at_ms: int = 0


@dataclass(frozen=True, slots=True)
class FetchReply:
    error: ErrorCode = ErrorCode.NONE
    detail: str = ""
    offsets: tuple[FetchedOffset, ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteOffsets:
    namespace: str
    group_id: str
    topics: tuple[TopicPartitions, ...]
    act: Act | None = None


@dataclass(frozen=True, slots=True)
class DeleteOffsetsReply:
    error: ErrorCode = ErrorCode.NONE
    detail: str = ""
    partitions: tuple[PartitionResult, ...] = ()


# --- fences and groups ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VerifyFence:
    """Is `generation_id` still the group's current one, and `member_id` (if given) still in it?"""

    namespace: str
    group_id: str
    generation_id: int
    member_id: str = ""
    sign: bool = False
    """Also answer with a signed token, for services that check it without asking us. Needs `member_id`."""


@dataclass(frozen=True, slots=True)
class FenceReply:
    """`error` is `ILLEGAL_GENERATION` or `UNKNOWN_MEMBER_ID` where the fence does not hold."""

    error: ErrorCode = ErrorCode.NONE
    detail: str = ""
    generation_id: int = NO_GENERATION
    is_leader: bool = False
    is_member: bool = False
    token: str = ""


@dataclass(frozen=True, slots=True)
class DescribeGroup:
    namespace: str
    group_id: str


@dataclass(frozen=True, slots=True)
class DescribedMember:
    """`metadata` and `assignment` are empty unless the group is Stable. `session_deadline_ms` is None while parked.

    `awaited`: the phase under way waits for it. `…_decoded`: JSON for people; None where the type cannot read it.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    metadata: bytes
    assignment: bytes
    session_timeout_ms: int
    rebalance_timeout_ms: int
    session_deadline_ms: int | None
    joined: bool
    awaited: bool = False
    metadata_decoded: dict[str, Any] | None = None
    assignment_decoded: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class DescribeReply:
    """A group as it stands; an unknown one is `Dead` with `GROUP_ID_NOT_FOUND`."""

    error: ErrorCode = ErrorCode.NONE
    detail: str = ""
    group_id: str = ""
    state: str = "Dead"
    generation_id: int = NO_GENERATION
    protocol_type: str = ""
    protocol_name: str = ""
    leader_id: str = ""
    members: tuple[DescribedMember, ...] = ()
    pending_members: int = 0
    rebalance_reason: str = ""
    rebalance_by: str = ""
    state_since_ms: int = 0
    phase_deadline_ms: int | None = None
    """When the phase that is under way goes on without those who are missing; None where none is."""


@dataclass(frozen=True, slots=True)
class ListGroups:
    """Groups of a namespace. States, group types ("classic") and protocol types filter; names compare without case.

    Pages are ordered by group id; `after` is the last id of the page before.
    """

    namespace: str
    states: tuple[str, ...] = ()
    group_types: tuple[str, ...] = ()
    protocol_types: tuple[str, ...] = ()
    after: str = ""
    limit: int = 1_000


@dataclass(frozen=True, slots=True)
class ListedGroup:
    group_id: str
    state: str
    protocol_type: str
    generation_id: int
    members: int
    group_type: str = "classic"


@dataclass(frozen=True, slots=True)
class ListReply:
    error: ErrorCode = ErrorCode.NONE
    detail: str = ""
    groups: tuple[ListedGroup, ...] = ()
    more: bool = False


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    namespace: str
    group_id: str
    reason: str = ""
    act: Act | None = None


@dataclass(frozen=True, slots=True)
class DeleteGroupReply:
    error: ErrorCode = ErrorCode.NONE
    detail: str = ""


@dataclass(frozen=True, slots=True)
class RebalanceGroup:
    """Have the members agree anew, for administrators. `step_down`: by another leader, if somebody else joins."""

    namespace: str
    group_id: str
    reason: str = ""
    step_down: bool = False
    act: Act | None = None


@dataclass(frozen=True, slots=True)
class RebalanceReply:
    """The rebalance is under way; `generation_id` is the one that ends with it."""

    error: ErrorCode = ErrorCode.NONE
    detail: str = ""
    generation_id: int = NO_GENERATION


@dataclass(frozen=True, slots=True)
class GetLeader:
    """Who leads; waits up to `wait_ms` for a generation above `after_generation` to have a leader."""

    namespace: str
    group_id: str
    after_generation: int = NO_GENERATION
    wait_ms: int | None = None


@dataclass(frozen=True, slots=True)
class LeaderReply:
    """The leader of the current generation; `generation_id` is the fencing token. Empty id: none now."""

    error: ErrorCode = ErrorCode.NONE
    detail: str = ""
    generation_id: int = NO_GENERATION
    leader_id: str = ""
    group_instance_id: str | None = None
    client_id: str = ""
    state: str = ""


# --- topics -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PutTopic:
    """Register a topic or let it grow; a count below today's is refused with `INVALID_PARTITIONS`."""

    namespace: str
    topic: str
    partitions: int
    attributes: tuple[tuple[str, str], ...] = ()
    act: Act | None = None


@dataclass(frozen=True, slots=True)
class GetTopic:
    """With `wait_ms`, parks while the topic is still the one that `version` says; none is a topic that is not there."""

    namespace: str
    topic: str
    version: str = ""
    wait_ms: int | None = 0


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    namespace: str
    topic: str
    act: Act | None = None


@dataclass(frozen=True, slots=True)
class TopicReply:
    error: ErrorCode = ErrorCode.NONE
    detail: str = ""
    topic: str = ""
    partitions: int = 0
    attributes: tuple[tuple[str, str], ...] = ()
    version: str = ""
    """Another one for each other content, for `GetTopic` to wait with."""


@dataclass(frozen=True, slots=True)
class ListTopics:
    """With `wait_ms`, parks while the namespace's topics, those of other pages included, are as `version` says."""

    namespace: str
    after: str = ""
    limit: int = 1_000
    version: str = ""
    wait_ms: int | None = 0


@dataclass(frozen=True, slots=True)
class ListTopicsReply:
    error: ErrorCode = ErrorCode.NONE
    detail: str = ""
    topics: tuple[TopicReply, ...] = field(default=())
    more: bool = False
    version: str = ""
    """Another one for each other content of the namespace, of which this may be a page."""


Request = (
    JoinGroup
    | SyncGroup
    | Heartbeat
    | HeartbeatMany
    | LeaveGroup
    | CommitOffsets
    | FetchOffsets
    | DeleteOffsets
    | VerifyFence
    | DescribeGroup
    | ListGroups
    | DeleteGroup
    | RebalanceGroup
    | GetLeader
    | PutTopic
    | GetTopic
    | DeleteTopic
    | ListTopics
)
Reply = (
    JoinReply
    | SyncReply
    | HeartbeatReply
    | HeartbeatManyReply
    | LeaveReply
    | CommitReply
    | FetchReply
    | DeleteOffsetsReply
    | FenceReply
    | DescribeReply
    | ListReply
    | DeleteGroupReply
    | RebalanceReply
    | LeaderReply
    | TopicReply
    | ListTopicsReply
)

REPLY_OF: dict[type, type] = {
    JoinGroup: JoinReply,
    SyncGroup: SyncReply,
    Heartbeat: HeartbeatReply,
    HeartbeatMany: HeartbeatManyReply,
    LeaveGroup: LeaveReply,
    CommitOffsets: CommitReply,
    FetchOffsets: FetchReply,
    DeleteOffsets: DeleteOffsetsReply,
    VerifyFence: FenceReply,
    DescribeGroup: DescribeReply,
    ListGroups: ListReply,
    DeleteGroup: DeleteGroupReply,
    RebalanceGroup: RebalanceReply,
    GetLeader: LeaderReply,
    PutTopic: TopicReply,
    GetTopic: TopicReply,
    DeleteTopic: TopicReply,
    ListTopics: ListTopicsReply,
}


def parks_for_ms(request: Request) -> int:
    """For how long the coordinator may keep `request` waiting, as it asked to; 0 where it does not park."""
    return getattr(request, "wait_ms", None) or 0


def refuse(request: Request, error: ErrorCode, detail: str) -> Reply:
    """The reply that refuses `request` without a group having looked at it."""
    reply: Reply = REPLY_OF[type(request)](error, detail)
    return reply
