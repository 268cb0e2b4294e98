"""Partitions as consecutive integers, which is what the sticky assignors count and compare a million times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

from rota.assignors.model import MemberSubscription, Shares, TopicPartition, topic_partitions

NOBODY = -1


@dataclass(frozen=True, slots=True)
class Numbering:
    """Topics in alphabetical order, the partitions of each in a row: `numbers[topic]` is the run of a topic."""

    numbers: Mapping[str, range]
    total: int

    @staticmethod
    def of(partitions_per_topic: Mapping[str, int], members: Sequence[MemberSubscription]) -> Numbering:
        """Number what can be assigned at all: topics that exist, have partitions and at least one subscriber."""
        wanted = {topic for member in members for topic in member.topics}
        topics = sorted(topic for topic in wanted if partitions_per_topic.get(topic, 0) > 0)
        ends = list(accumulate((partitions_per_topic[topic] for topic in topics), initial=0))
        runs = zip(topics, ends, ends[1:], strict=False)
        return Numbering({topic: range(start, end) for topic, start, end in runs}, ends[-1])

    def partition_numbers(self) -> list[int]:
        """For each number the partition's own number within its topic."""
        return list(chain.from_iterable(range(len(run)) for run in self.numbers.values()))

    def topic_partitions(self) -> list[TopicPartition]:
        """For each number what it stands for."""
        return list(chain.from_iterable(topic_partitions(topic, len(run)) for topic, run in self.numbers.items()))

    def named(self, members: Sequence[MemberSubscription], shares: Sequence[Sequence[int]]) -> Shares:
        """Numbers as topic partitions, by member id; `shares` are in the order of `members`."""
        names = self.topic_partitions()
        return {
            member.member_id: list(map(names.__getitem__, sorted(share)))
            for member, share in zip(members, shares, strict=True)
        }
