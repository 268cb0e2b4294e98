"""Assignment strategies: pure functions from topics and subscriptions to who gets which partition.

The leader of a group calls `assign` with the members it was told of; the strategies and their names are Kafka's.
"""

from __future__ import annotations

from rota.assignors.model import (
    Assignor,
    MemberSubscription,
    PartitionRacks,
    Shares,
    TopicPartition,
)
from rota.assignors.registry import ASSIGNORS, UnknownAssignor, assign, assignor

__all__ = [
    "ASSIGNORS",
    "Assignor",
    "MemberSubscription",
    "PartitionRacks",
    "Shares",
    "TopicPartition",
    "UnknownAssignor",
    "assign",
    "assignor",
]
