"""The properties that `assignors.json` asks of a result, by the names of its `property_definitions`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from rota.core.assignors import MemberSubscription, Shares, TopicPartition


@dataclass(frozen=True)
class Outcome:
    """The input (`before`, `partitions_per_topic`) and the output."""

    partitions_per_topic: Mapping[str, int]
    before: Sequence[MemberSubscription]
    shares: Shares

    @cached_property
    def topics_of(self) -> dict[str, frozenset[str]]:
        return {member.member_id: frozenset(member.topics) for member in self.before}

    @cached_property
    def holders(self) -> dict[TopicPartition, str]:
        return {partition: member_id for member_id, share in self.shares.items() for partition in share}

    @cached_property
    def loads(self) -> dict[str, int]:
        return {member_id: len(share) for member_id, share in self.shares.items()}

    @cached_property
    def effective_owners(self) -> dict[TopicPartition, str]:
        """Previous owners that could keep the partition: it exists and they subscribe to it."""
        claims: dict[TopicPartition, list[tuple[int, str]]] = {}
        for member in self.before:
            for partition in dict.fromkeys(member.owned_partitions):
                generation = -1 if member.generation is None else member.generation
                claims.setdefault(partition, []).append((generation, member.member_id))
        owners = {}
        for partition, claimants in claims.items():
            highest = max(generation for generation, _ in claimants)
            winners = [member_id for generation, member_id in claimants if generation == highest]
            if len(winners) == 1 and self.exists(partition) and partition.topic in self.topics_of[winners[0]]:
                owners[partition] = winners[0]
        return owners

    def exists(self, partition: TopicPartition) -> bool:
        return 0 <= partition.partition < self.partitions_per_topic.get(partition.topic, 0)

    def subscribers(self, topic: str) -> list[str]:
        return [member_id for member_id, topics in self.topics_of.items() if topic in topics]


def _valid(outcome: Outcome) -> bool:
    assigned = sum(outcome.loads.values())
    return (
        set(outcome.shares) == set(outcome.topics_of)
        and len(outcome.holders) == assigned
        and all(outcome.exists(partition) for partition in outcome.holders)
        and all(
            partition.topic in outcome.topics_of[member_id]
            for member_id, share in outcome.shares.items()
            for partition in share
        )
    )


def _complete(outcome: Outcome) -> bool:
    wanted = frozenset[str]().union(*outcome.topics_of.values())
    return len(outcome.holders) == sum(outcome.partitions_per_topic.get(topic, 0) for topic in wanted)


def _fully_balanced(outcome: Outcome) -> bool:
    return max(outcome.loads.values()) - min(outcome.loads.values()) <= 1


def _balanced(outcome: Outcome) -> bool:
    """A partition could move if its holder has two more than the least loaded subscriber of its topic."""
    heaviest: dict[str, int] = {}
    for partition, holder in outcome.holders.items():
        heaviest[partition.topic] = max(heaviest.get(partition.topic, 0), outcome.loads[holder])
    return all(
        load - min(outcome.loads[member_id] for member_id in outcome.subscribers(topic)) <= 1
        for topic, load in heaviest.items()
    )


def _two_phase(outcome: Outcome) -> bool:
    """No member is given a partition that another member, its owner in the input, is losing."""
    owned = {member.member_id: frozenset(member.owned_partitions) for member in outcome.before}
    claimants: dict[TopicPartition, list[str]] = {}
    for member_id, partitions in owned.items():
        for partition in partitions:
            claimants.setdefault(partition, []).append(member_id)
    return not any(
        claimant != holder
        for partition, holder in outcome.holders.items()
        if outcome.effective_owners.get(partition) != holder
        for claimant in claimants.get(partition, ())
    )


def _no_two_cycle(outcome: Outcome) -> bool:
    ways = {
        (partition.topic, owner, outcome.holders[partition])
        for partition, owner in outcome.effective_owners.items()
        if partition in outcome.holders and outcome.holders[partition] != owner
    }
    return not any((topic, target, source) in ways for topic, source, target in ways)


def _per_topic_equal(outcome: Outcome) -> bool:
    counts = [Counter(partition.topic for partition in share) for share in outcome.shares.values()]
    return all(count == counts[0] for count in counts)


def kept(outcome: Outcome) -> int:
    """How many partitions stay with their effective previous owner."""
    return sum(outcome.holders.get(partition) == owner for partition, owner in outcome.effective_owners.items())


def moved(outcome: Outcome) -> int:
    """How many partitions leave an effective previous owner."""
    return len(outcome.effective_owners) - kept(outcome)


_PLAIN: dict[str, Callable[[Outcome], bool]] = {
    "valid": _valid,
    "complete": _complete,
    "complete-for-subscribed": _complete,
    "fully-balanced": _fully_balanced,
    "balanced": _balanced,
    "two-phase": _two_phase,
    "no-2-cycle": _no_two_cycle,
    "per-topic-equal": _per_topic_equal,
}


def _most_unequal_topic(outcome: Outcome) -> int:
    """The largest difference, in any topic, between the partitions of two of its subscribers."""
    counts = {member_id: Counter(p.topic for p in share) for member_id, share in outcome.shares.items()}
    loads = [[counts[member_id][topic] for member_id in outcome.subscribers(topic)] for topic in _topics(outcome)]
    return max((max(each) - min(each) for each in loads if each), default=0)


def _topics(outcome: Outcome) -> frozenset[str]:
    return frozenset[str]().union(*outcome.topics_of.values()) & outcome.partitions_per_topic.keys()


def holds(name: str, outcome: Outcome) -> bool:
    """Whether the outcome has the property; a name that is not known raises. Blanks around signs do not matter."""
    name = re.sub(r"\s*([<>]?=)\s*", r"\1", name.strip())
    if name in _PLAIN:
        return _PLAIN[name](outcome)
    if match := re.fullmatch(r"sticky>=(\d+)", name):
        return kept(outcome) >= int(match[1])
    if match := re.fullmatch(r"moved<=(\d+)", name):
        return moved(outcome) <= int(match[1])
    if match := re.fullmatch(r"per-topic[ -]difference<=(\d+)", name):
        return _most_unequal_topic(outcome) <= int(match[1])
    if match := re.fullmatch(r"difference<=(\d+)", name):
        return max(outcome.loads.values(), default=0) - min(outcome.loads.values(), default=0) <= int(match[1])
    if match := re.fullmatch(r"count:(.+)=(\d+)", name):
        return outcome.loads[match[1]] == int(match[2])
    raise ValueError(f"property {name!r} is not known to this runner")
