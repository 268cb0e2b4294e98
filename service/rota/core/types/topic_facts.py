"""What the registry knows of a topic, and what strategies read in its attributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_MOST_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic as the registry knows it."""

    partitions: int
    attributes: Mapping[str, str] = field(default_factory=dict)

    def racks(self) -> list[list[str]]:
        """The attribute `racks`: those of partition 0, a comma, those of partition 1, …; several are joined by `+`."""
        text = self.attributes.get("racks", "")
        return [[rack for rack in part.strip().split("+") if rack] for part in text.split(",")] if text else []

    def weights(self) -> list[float]:
        """The attribute `weights`: numbers with commas between them. One that is no weight counts as 1."""
        text = self.attributes.get("weights", "")
        return [_weight(part) for part in text.split(",")] if text else []


def partition_counts(topics: Mapping[str, TopicFacts]) -> dict[str, int]:
    """How many partitions each topic has, as strategies take it."""
    return {name: facts.partitions for name, facts in topics.items()}


def partition_racks(topics: Mapping[str, TopicFacts]) -> dict[str, list[list[str]]]:
    """The racks of the partitions, of topics with racks in their registry entry."""
    return {name: racks for name, facts in topics.items() if (racks := facts.racks())}


def partition_weights(topics: Mapping[str, TopicFacts]) -> dict[str, list[float]]:
    """The weights of the partitions, of topics with weights in their registry entry."""
    return {name: weights for name, facts in topics.items() if (weights := facts.weights())}


def describe_changes(before: Mapping[str, TopicFacts], after: Mapping[str, TopicFacts]) -> str:
    """The difference in a few words, for reasons: `docs 64 → 96, audit-2 0 → 4`; empty where there is none."""
    changed = [
        f"{name} {old} → {new}" if old != new else f"{name} has other attributes"
        for name in sorted({*before, *after})
        for old, new in [(_partitions(before, name), _partitions(after, name))]
        if before.get(name) != after.get(name)
    ]
    more = [f"{len(changed) - _MOST_NAMED} more"] if len(changed) > _MOST_NAMED else []
    return ", ".join((*changed[:_MOST_NAMED], *more))


def _partitions(topics: Mapping[str, TopicFacts], name: str) -> int:
    return topics[name].partitions if name in topics else 0


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        return 1.0
    return weight if 0 <= weight < float("inf") else 1.0
