"""`by-topic`: several strategies within one group, each for topics of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from rota.core.assignors.model import MemberSubscription, PartitionRacks, PartitionWeights, Shares

Rules: TypeAlias = "tuple[Rule, ...]"
AssignBy: TypeAlias = Callable[
    [str, Mapping[str, int], Sequence[MemberSubscription], PartitionRacks | None, PartitionWeights | None], Shares
]

_PATTERN_END = "*"


@dataclass(frozen=True, slots=True)
class Rule:
    """The topics of this name, or that begin so where it ends in `*`, are assigned by this strategy."""

    topics: str
    strategy: str

    def matches(self, topic: str) -> bool:
        beginning = self.topics.removesuffix(_PATTERN_END)
        return topic == beginning if beginning == self.topics else topic.startswith(beginning)


def by_topic(
    partitions_per_topic: Mapping[str, int],
    members: Sequence[MemberSubscription],
    partition_racks: PartitionRacks | None = None,
    *,
    rules: Rules,
    assign_by: AssignBy,
    partition_weights: PartitionWeights | None = None,
) -> Shares:
    """Assign the topics of each rule by its strategy, which sees these topics alone.

    The first rule that matches a topic counts. Rules of one strategy are assigned together: topics that
    `copartitioned` shall keep side by side may be named by several. A topic that no rule matches has no member.
    """
    topics_by: dict[str, set[str]] = {}
    for topic in partitions_per_topic:
        if found := next((rule for rule in rules if rule.matches(topic)), None):
            topics_by.setdefault(found.strategy, set()).add(topic)
    shares: Shares = {member.member_id: [] for member in members}
    for strategy in sorted(topics_by):
        topics = topics_by[strategy]
        narrowed = [_narrowed(member, topics) for member in members]
        counts = {topic: partitions_per_topic[topic] for topic in topics}
        for member_id, share in assign_by(strategy, counts, narrowed, partition_racks, partition_weights).items():
            shares[member_id] += share
    return shares


def _narrowed(member: MemberSubscription, topics: set[str]) -> MemberSubscription:
    owned = [place for place in member.owned_partitions if place.topic in topics]
    return replace(member, topics=[topic for topic in member.topics if topic in topics], owned_partitions=owned)
