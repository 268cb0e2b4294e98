"""Assignment strategies: pure functions from topics and subscriptions to who gets which partition.

The leader of a group calls `assign` with the members it was told of. Strategies of Kafka have Kafka's names.
"""

from __future__ import annotations

from rota.assignors.incremental import reassign
from rota.assignors.model import (
    Assignor,
    MemberSubscription,
    PartitionRacks,
    PartitionWeights,
    Shares,
    TopicPartition,
)
from rota.assignors.registry import ASSIGNORS, STRATEGIES, Strategy, UnknownAssignor, assign, assignor, strategy

__all__ = [
    "ASSIGNORS",
    "STRATEGIES",
    "Assignor",
    "MemberSubscription",
    "PartitionRacks",
    "PartitionWeights",
    "Shares",
    "Strategy",
    "TopicPartition",
    "UnknownAssignor",
    "assign",
    "assignor",
    "reassign",
    "strategy",
]
