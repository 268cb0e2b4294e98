"""Assignment strategies: pure functions from topics and subscriptions to assignments.

The leader of a group calls `assign` with the members of the generation. Strategies of Kafka have Kafka's names.
"""

from __future__ import annotations

from rota.core.assignors.model import (
    GroupSubscription,
    MemberSubscription,
    PartitionRacks,
    PartitionWeights,
    Shares,
    TopicPartition,
    UserData,
)
from rota.core.assignors.own import (
    GroupAssignment,
    InvalidAssignment,
    OwnAssignment,
    PartitionStrategy,
)
from rota.core.assignors.placement import active_copies
from rota.core.assignors.registry import (
    ENTRY_POINT_GROUP,
    STRATEGIES,
    BrokenStrategy,
    Strategy,
    UnknownAssignor,
    assign,
    assign_group,
    has_copies,
    register_entry_points,
    register_strategy,
    strategy,
)

__all__ = [
    "ENTRY_POINT_GROUP",
    "STRATEGIES",
    "BrokenStrategy",
    "GroupAssignment",
    "GroupSubscription",
    "InvalidAssignment",
    "MemberSubscription",
    "OwnAssignment",
    "PartitionRacks",
    "PartitionStrategy",
    "PartitionWeights",
    "Shares",
    "Strategy",
    "TopicPartition",
    "UnknownAssignor",
    "UserData",
    "active_copies",
    "assign",
    "assign_group",
    "has_copies",
    "register_entry_points",
    "register_strategy",
    "strategy",
]
