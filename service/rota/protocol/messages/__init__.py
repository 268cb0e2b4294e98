"""Requests and replies of the group protocol (protocol.md §3), the same for every transport.

A request names its group by `namespace` and `group_id`. A reply carries its outcome in `error`;
the other fields hold their empty values when `error` is not `NONE`. Times are milliseconds.
"""

from __future__ import annotations

from rota.protocol.errors import ErrorCode
from rota.protocol.messages.base import (
    NO_GENERATION,
    Act,
    Audited,
    GroupRequest,
    InMembersName,
    NamespaceRequest,
    Parkable,
    TopicRequest,
    parks_for_ms,
)
from rota.protocol.messages.groups import (
    DeleteGroup,
    DeleteGroupReply,
    DescribedMember,
    DescribeGroup,
    DescribeReply,
    DrainMember,
    DrainReply,
    FenceReply,
    FreezeGroup,
    FreezeReply,
    GetLeader,
    LeaderReply,
    ListedGroup,
    ListGroups,
    ListReply,
    QuarantineGroup,
    QuarantineReply,
    RebalanceGroup,
    RebalanceReply,
    Trouble,
    VerifyFence,
)
from rota.protocol.messages.membership import (
    Heartbeat,
    HeartbeatError,
    HeartbeatMany,
    HeartbeatManyReply,
    HeartbeatReply,
    JoinedMember,
    JoinGroup,
    JoinReply,
    LeaveGroup,
    LeaveReply,
    LeavingMember,
    LeftMember,
    MemberHeartbeat,
    Protocol,
    SyncGroup,
    SyncReply,
)
from rota.protocol.messages.offsets import (
    CommitOffsets,
    CommitReply,
    DeleteOffsets,
    DeleteOffsetsReply,
    FetchedOffset,
    FetchOffsets,
    FetchReply,
    OffsetToCommit,
    PartitionResult,
    TopicPartitions,
)
from rota.protocol.messages.plans import (
    GroupSnapshot,
    PlanGroup,
    PlannedMember,
    PlannedMove,
    PlanReply,
    SnapshotMember,
    TopicCount,
)
from rota.protocol.messages.topics import (
    DeleteTopic,
    ForgetTopic,
    GetTopic,
    ListedTopic,
    ListTopics,
    ListTopicsReply,
    PutTopic,
    TopicReply,
)

__all__ = [
    "NO_GENERATION",
    "REPLY_OF",
    "Act",
    "Audited",
    "CommitOffsets",
    "CommitReply",
    "DeleteGroup",
    "DeleteGroupReply",
    "DeleteOffsets",
    "DeleteOffsetsReply",
    "DeleteTopic",
    "DescribeGroup",
    "DescribeReply",
    "DescribedMember",
    "DrainMember",
    "DrainReply",
    "FenceReply",
    "FetchOffsets",
    "FetchReply",
    "FetchedOffset",
    "ForgetTopic",
    "FreezeGroup",
    "FreezeReply",
    "GetLeader",
    "GetTopic",
    "GroupRequest",
    "GroupSnapshot",
    "Heartbeat",
    "HeartbeatError",
    "HeartbeatMany",
    "HeartbeatManyReply",
    "HeartbeatReply",
    "InMembersName",
    "JoinGroup",
    "JoinReply",
    "JoinedMember",
    "LeaderReply",
    "LeaveGroup",
    "LeaveReply",
    "LeavingMember",
    "LeftMember",
    "ListGroups",
    "ListReply",
    "ListTopics",
    "ListTopicsReply",
    "ListedGroup",
    "ListedTopic",
    "MemberHeartbeat",
    "NamespaceRequest",
    "OffsetToCommit",
    "Parkable",
    "PartitionResult",
    "PlanGroup",
    "PlanReply",
    "PlannedMember",
    "PlannedMove",
    "Protocol",
    "PutTopic",
    "QuarantineGroup",
    "QuarantineReply",
    "RebalanceGroup",
    "RebalanceReply",
    "Reply",
    "Request",
    "SnapshotMember",
    "SyncGroup",
    "SyncReply",
    "TopicCount",
    "TopicPartitions",
    "TopicReply",
    "TopicRequest",
    "Trouble",
    "VerifyFence",
    "parks_for_ms",
    "refuse",
]

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
    | FreezeGroup
    | QuarantineGroup
    | DrainMember
    | PlanGroup
    | GetLeader
    | PutTopic
    | GetTopic
    | DeleteTopic
    | ForgetTopic
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
    | FreezeReply
    | QuarantineReply
    | DrainReply
    | PlanReply
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
    FreezeGroup: FreezeReply,
    QuarantineGroup: QuarantineReply,
    DrainMember: DrainReply,
    PlanGroup: PlanReply,
    GetLeader: LeaderReply,
    PutTopic: TopicReply,
    GetTopic: TopicReply,
    DeleteTopic: TopicReply,
    ForgetTopic: TopicReply,
    ListTopics: ListTopicsReply,
}


def refuse(request: Request, error: ErrorCode, detail: str) -> Reply:
    """The reply that refuses `request` before a group has decided anything."""
    reply: Reply = REPLY_OF[type(request)](error, detail)
    return reply
