"""The SDK: join a group, hold a share of its work for as long as that is safe, and leave in order.

    async with rota.connect("http://localhost:8080") as client:
        async with client.member_of_topics("indexers", {"documents": 12}, on_revoked=stop) as member:
            assigned = await member.wait_assigned()

`Member` heartbeats and rejoins in the background. `member.assignment` is None from the local deadline on, which is
always earlier than the moment from which the coordinator may give the share to somebody else.
"""

from rota.assignors import TopicPartition
from rota.client.callbacks import Assign, Listener
from rota.client.client import Client, connect
from rota.client.errors import (
    AccessDenied,
    AssignmentFailed,
    CoordinatorError,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    CoordinatorUnreachable,
    FencedInstanceId,
    GroupAuthorizationFailed,
    GroupIdNotFound,
    GroupMaxSizeReached,
    GroupSubscribedToTopic,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidGroupId,
    InvalidPartitions,
    InvalidRequest,
    InvalidSessionTimeout,
    MemberIdRequired,
    MembershipLost,
    NonEmptyGroup,
    NotCoordinator,
    NotFound,
    OffsetMetadataTooLarge,
    PayloadTooLarge,
    RebalanceInProgress,
    Rebalancing,
    Refused,
    Throttled,
    Unauthenticated,
    Unavailable,
    UnknownMemberId,
    UnknownTopic,
    error_for,
)
from rota.client.member import Member
from rota.client.transports import GroupEvent, HttpTransport, InMemoryTransport, Transport
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import JoinedMember, OffsetToCommit, TopicPartitions

__all__ = [
    "AccessDenied",
    "Assign",
    "AssignmentFailed",
    "Client",
    "CoordinatorError",
    "CoordinatorLoadInProgress",
    "CoordinatorNotAvailable",
    "CoordinatorUnreachable",
    "ErrorCode",
    "FencedInstanceId",
    "GroupAuthorizationFailed",
    "GroupEvent",
    "GroupIdNotFound",
    "GroupMaxSizeReached",
    "GroupSubscribedToTopic",
    "HttpTransport",
    "IllegalGeneration",
    "InMemoryTransport",
    "InconsistentGroupProtocol",
    "InvalidGroupId",
    "InvalidPartitions",
    "InvalidRequest",
    "InvalidSessionTimeout",
    "JoinedMember",
    "Listener",
    "Member",
    "MemberIdRequired",
    "MembershipLost",
    "NonEmptyGroup",
    "NotCoordinator",
    "NotFound",
    "OffsetMetadataTooLarge",
    "OffsetToCommit",
    "PayloadTooLarge",
    "RebalanceInProgress",
    "Rebalancing",
    "Refused",
    "Throttled",
    "TopicPartition",
    "TopicPartitions",
    "Transport",
    "Unauthenticated",
    "Unavailable",
    "UnknownMemberId",
    "UnknownTopic",
    "connect",
    "error_for",
]
