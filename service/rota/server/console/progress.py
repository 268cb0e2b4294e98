"""Progress: the offsets of one group, and of all groups that read a topic."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rota.protocol.messages import FetchedOffset, FetchOffsets, FetchReply, GetTopic, ListGroups, ListReply, TopicReply
from rota.server.console.backend import Asked, Backend, Described
from rota.server.console.group import common_values
from rota.server.console.shares import Unit, holders, unit_order

PAGE = 100
"""Number of partitions on one page."""
MOST_GROUPS = 20
"""Maximum number of groups on the page of a topic; the page says if there are more."""


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """One partition of one group. `behind` is the difference from the group with the highest offset; None without an
    offset.
    """

    topic: str
    partition: int
    committed: FetchedOffset | None
    holders: tuple[str, ...]
    behind: int | None = None


@dataclass(frozen=True, slots=True)
class Reader:
    """A group that subscribes to a topic, with its lines of that topic."""

    described: Described
    lines: tuple[PartitionRow, ...]

    @property
    def behind(self) -> int:
        """The total of `behind` over the shown partitions."""
        return sum(line.behind or 0 for line in self.lines)


async def offsets_page(asked: Asked) -> dict[str, Any]:
    """Show the committed offsets of a group, and the holder of each partition."""
    described = await asked.backend.describe(asked.namespace, asked.name)
    topic = asked.parameters.get("topic", "")
    offsets = await _offsets(asked.backend, asked.namespace, asked.name)
    held = _holders(described)
    units = sorted({*offsets, *held}, key=unit_order)
    topics = list(dict.fromkeys(name for name, _ in units))
    shown, links = asked.page([unit for unit in units if topic in ("", unit[0])], PAGE)
    return {
        **common_values(asked, described, asked.backend.now_ms()),
        **links,
        "lines": [_row(unit, offsets, held) for unit in shown],
        "topics": topics,
        "topic": topic,
    }


async def topic_page(asked: Asked) -> dict[str, Any]:
    """Show a topic with its subscribed groups, and their progress by partition."""
    backend, namespace, topic = asked.backend, asked.namespace, asked.name
    facts = await backend.call(GetTopic(namespace, topic))
    assert isinstance(facts, TopicReply)
    listed = await backend.call(ListGroups(namespace, topic=topic, limit=MOST_GROUPS))
    assert isinstance(listed, ListReply)
    described = await backend.describe_each(namespace, [group.group_id for group in listed.groups])
    numbers, links = asked.page(range(facts.partitions), PAGE)
    offsets = await asyncio.gather(*(_offsets(backend, namespace, group_id) for group_id in described))
    farthest = {
        number: max((each[topic, number].offset for each in offsets if (topic, number) in each), default=-1)
        for number in numbers
    }
    return {
        "namespace": namespace,
        "topic": facts,
        "readers": [
            Reader(each, tuple(_lines(topic, numbers, of_group, _holders(each), farthest)))
            for each, of_group in zip(described.values(), offsets, strict=True)
        ],
        "more_groups": listed.next_after is not None,
        **links,
        "now_ms": backend.now_ms(),
    }


async def _offsets(backend: Backend, namespace: str, group_id: str) -> dict[Unit, FetchedOffset]:
    reply = await backend.call(FetchOffsets(namespace, group_id))
    assert isinstance(reply, FetchReply)
    return {(each.topic, each.partition): each for each in reply.offsets if each.offset >= 0}


def _holders(described: Described) -> dict[Unit, tuple[str, ...]]:
    shares = {member.member_id: member.assignment for member in described.group.members}
    found = holders(described.group.protocol_type, shares)
    return {unit: tuple(sorted(member_ids)) for unit, member_ids in found.items()}


def _lines(
    topic: str,
    numbers: Sequence[int],
    offsets: Mapping[Unit, FetchedOffset],
    held: Mapping[Unit, tuple[str, ...]],
    farthest: Mapping[int, int],
) -> Iterable[PartitionRow]:
    for number in numbers:
        line = _row((topic, number), offsets, held)
        behind = None if line.committed is None else farthest[number] - line.committed.offset
        yield PartitionRow(line.topic, line.partition, line.committed, line.holders, behind)


def _row(unit: Unit, offsets: Mapping[Unit, FetchedOffset], held: Mapping[Unit, tuple[str, ...]]) -> PartitionRow:
    return PartitionRow(*unit, offsets.get(unit), held.get(unit, ()))
