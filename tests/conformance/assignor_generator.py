"""Cases of `assignors.json` that are described by a rule: the rules in words, turned into topics and members.

Every rule is matched as a whole: one that is not known raises, it never builds something else in silence. Topics and
consumers count from 1 in their names, as "consumer 10" in the rules does.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rota.core.assignors import MemberSubscription, PartitionRacks, Shares

_KNOWN = {
    "topics", "partitions_per_topic", "consumers", "subscription", "rounds", "repeat", "racks", "replication",
}  # fmt: skip
_KNOWN_IN_ROUND = {"owned", "generation", "subscription", "remove_consumers", "add_consumers"}


class UnknownRule(ValueError):
    """The rule is not one that this runner understands."""


@dataclass
class World:
    """One repetition of a generated case, carried from round to round."""

    rule: Mapping[str, Any]
    chance: random.Random
    partitions_per_topic: dict[str, int]
    subscriptions: dict[str, list[str]] = field(default_factory=dict)

    @property
    def topics(self) -> list[str]:
        return list(self.partitions_per_topic)

    @property
    def partition_racks(self) -> PartitionRacks | None:
        if "racks" not in self.rule:
            return None
        racks, replication = self.rule["racks"], self.rule["replication"]
        return {
            topic: [[f"rack{(number + replica) % racks}" for replica in range(replication)] for number in range(count)]
            for topic, count in self.partitions_per_topic.items()
        }

    def members(self, this_round: Mapping[str, Any], previous: Shares) -> list[MemberSubscription]:
        """The members of a round, given the result of the round before."""
        _refuse_unknown(this_round, _KNOWN_IN_ROUND)
        self._change_members(this_round)
        if "subscription" in this_round:
            self._change_subscriptions(this_round["subscription"])
        owned = self._owned(this_round["owned"], previous)
        return [
            MemberSubscription(
                consumer,
                topics=topics,
                owned_partitions=owned.get(consumer, []),
                generation=this_round.get("generation"),
                rack=self._rack(consumer),
            )
            for consumer, topics in self.subscriptions.items()
        ]

    def _change_members(self, this_round: Mapping[str, Any]) -> None:
        leaving = this_round.get("remove_consumers", [])
        if isinstance(leaving, int):
            leaving = self.chance.sample(sorted(self.subscriptions), leaving)
        else:
            leaving = [_named(name) for name in leaving]
        for consumer in leaving:
            del self.subscriptions[consumer]
        for _ in range(this_round.get("add_consumers", 0)):
            index = len(self.subscriptions)
            self.subscriptions[_consumer(index + 1)] = self._subscription(index, index + 1)

    def _change_subscriptions(self, rule: str) -> None:
        if rule != "new random non-empty subset per consumer":
            raise UnknownRule(f"subscription of a later round: {rule!r}")
        for consumer in self.subscriptions:
            self.subscriptions[consumer] = self._random_subset()

    def _owned(self, rule: str, previous: Shares) -> Shares:
        if rule == "none":
            return {}
        if rule == "previous result":
            return previous
        if match := re.fullmatch(r"previous result for every consumer except index (\d+)", rule):
            without = _consumer(int(match[1]) + 1)
            return {consumer: share for consumer, share in previous.items() if consumer != without}
        raise UnknownRule(f"owned: {rule!r}")

    def subscribe(self, consumers: int) -> None:
        """Let that many consumers subscribe by the rule of the case."""
        for index in range(consumers):
            self.subscriptions[_consumer(index + 1)] = self._subscription(index, consumers)

    def _subscription(self, index: int, consumers: int) -> list[str]:
        rule, topics = self.rule["subscription"], self.topics
        half = len(topics) // 2
        if rule == "all":
            return topics
        if rule == "all, but the last consumer only the first topic":
            return topics if index < consumers - 1 else topics[:1]
        if match := re.fullmatch(r"index % (\d+) == (\d+): first half of the topics; else second half", rule):
            return topics[:half] if index % int(match[1]) == int(match[2]) else topics[half:]
        if match := re.fullmatch(r"random, up to (\d+) topics \(may repeat, may be empty\)", rule):
            return self.chance.choices(topics, k=self.chance.randint(0, int(match[1])))
        if rule == "random non-empty sorted subset":
            return self._random_subset()
        if rule == "consumer i: topics 1..i":
            return topics[: index + 1]
        raise UnknownRule(f"subscription: {rule!r}")

    def _random_subset(self) -> list[str]:
        return sorted(self.chance.sample(self.topics, self.chance.randint(1, len(self.topics))))

    def _rack(self, consumer: str) -> str | None:
        index = int(consumer.removeprefix("consumer")) - 1
        return f"rack{index % self.rule['racks']}" if "racks" in self.rule else None


def worlds(rule: Mapping[str, Any], seed: str) -> Iterator[World]:
    """The repetitions of a case; the same seed gives the same ones."""
    _refuse_unknown(rule, _KNOWN)
    chance = random.Random(seed)
    for _ in range(rule.get("repeat", 1)):
        world = World(rule, chance, _partitions_per_topic(rule, chance))
        world.subscribe(_number(rule["consumers"], chance))
        yield world


def scaled_down(rule: Mapping[str, Any], most_partitions: int) -> dict[str, Any]:
    """The same rule with fewer topics and consumers, in proportion."""
    scale = partitions(rule) // most_partitions + 1
    return {**rule, "topics": max(2, rule["topics"] // scale), "consumers": max(2, rule["consumers"] // scale)}


def partitions(rule: Mapping[str, Any]) -> int:
    """How many partitions a rule makes if it says so in numbers; 0 for the small ones in words."""
    topics, each = rule["topics"], rule.get("partitions_per_topic")
    return topics * each if isinstance(topics, int) and isinstance(each, int) else 0


def _partitions_per_topic(rule: Mapping[str, Any], chance: random.Random) -> dict[str, int]:
    topics, each = rule["topics"], rule.get("partitions_per_topic")
    if isinstance(topics, str):
        match = re.fullmatch(r"random (\d+\.\.\d+) \(topic i has i\+1 partitions\)", topics)
        if match is None or each is not None:
            raise UnknownRule(f"topics: {topics!r}")
        topics, each = _number(f"random {match[1]}", chance), "topic i (1-based) has i"
    names = [f"topic{index:04}" for index in range(1, topics + 1)]
    if isinstance(each, str) and re.fullmatch(r"topic i \(1-based\) has i( \(\d+ in all\))?", each):
        return {name: index for index, name in enumerate(names, start=1)}
    return {name: _number(each, chance) for name in names}


def _number(rule: object, chance: random.Random) -> int:
    if isinstance(rule, int):
        return rule
    if isinstance(rule, str) and (match := re.fullmatch(r"random (\d+)\.\.(\d+)", rule)):
        return chance.randint(int(match[1]), int(match[2]))
    raise UnknownRule(f"number: {rule!r}")


def _consumer(number: int) -> str:
    return f"consumer{number:04}"


def _named(name: str) -> str:
    match = re.fullmatch(r"consumer (\d+)", name)
    if match is None:
        raise UnknownRule(f"consumer: {name!r}")
    return _consumer(int(match[1]))


def _refuse_unknown(rule: Mapping[str, Any], known: set[str]) -> None:
    unknown = set(rule) - known
    if unknown:
        raise UnknownRule(f"keys of a generator: {sorted(unknown)}")
