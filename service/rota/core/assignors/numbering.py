"""Partitions as consecutive integers, which is what the sticky assignors count and compare a million times."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import cast

from rota.core.assignors.model import MemberSubscription, Shares, TopicPartition, topic_partitions

NOBODY = -1


@dataclass(frozen=True, slots=True)
class Numbering:
    """Topics in alphabetical order, the partitions of each in a row: `numbers[topic]` is the run of a topic."""

    numbers: Mapping[str, range]
    total: int

    @staticmethod
    def of(partitions_per_topic: Mapping[str, int], members: Sequence[MemberSubscription]) -> Numbering:
        """Number what can be assigned at all: topics that exist, have partitions and at least one subscriber."""
        return Numbering.of_topics(partitions_per_topic, set[str]().union(*[member.topics for member in members]))

    @staticmethod
    def of_topics(partitions_per_topic: Mapping[str, int], topics: Collection[str]) -> Numbering:
        """Number all partitions of these topics, those that exist and have partitions."""
        numbers, total = {}, 0
        for topic in sorted(topics):
            count = partitions_per_topic.get(topic, 0)
            if count > 0:
                numbers[topic] = range(total, total + count)
                total += count
        return Numbering(numbers, total)

    def partition_numbers(self) -> list[int]:
        """For each number the partition's own number within its topic."""
        return list(chain.from_iterable(range(len(run)) for run in self.numbers.values()))

    def topic_partitions(self) -> list[TopicPartition]:
        """The topic and partition of each number."""
        return list(chain.from_iterable(topic_partitions(topic, len(run)) for topic, run in self.numbers.items()))

    def named(
        self,
        members: Sequence[MemberSubscription],
        shares: Sequence[Sequence[int]],
        known: Sequence[TopicPartition | None] = (),
    ) -> Shares:
        """Numbers as topic partitions, by member id; `shares` are in the order of `members`.

        Names that are `known`, by number, are used again: of a million it is felt.
        """
        names = self._completed(known) if any(known) else self.topic_partitions()
        return {member.member_id: _picked(names, sorted(share)) for member, share in zip(members, shares, strict=True)}

    def _completed(self, known: Sequence[TopicPartition | None]) -> list[TopicPartition]:
        starts = [(run.start, topic) for topic, run in self.numbers.items()]
        names = list(known)
        for number in [number for number, name in enumerate(known) if name is None]:
            start, topic = starts[bisect_right(starts, number, key=_start) - 1]
            names[number] = TopicPartition(topic, number - start)
        return cast("list[TopicPartition]", names)


def _picked(names: Sequence[TopicPartition], numbers: Sequence[int]) -> list[TopicPartition]:
    """Twice as fast as one by one, but only for two or more `itemgetter` makes a tuple."""
    return list(itemgetter(*numbers)(names)) if len(numbers) > 1 else [names[number] for number in numbers]


def _start(topic: tuple[int, str]) -> int:
    return topic[0]
