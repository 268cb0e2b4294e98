"""The assignment as a map: members × units of work, the moves since the previous generation, and the skew."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rota.core.types.permits import PROTOCOL_TYPE as PERMITS
from rota.core.types.registry import readable_assignment

_BY_TOPIC = ("topics", "run", "partitions")
"""The fields in which our protocol types list numbers by topic (or connector)."""
_PERMIT = "permit"
_NUMBERS = re.compile(r"(\d+)")

Unit = tuple[str, int]
"""A topic and its partition, a connector and its task, or `permit` and its number."""


@dataclass(frozen=True, slots=True)
class Row:
    """One member's share, as indices of the map's units."""

    member_id: str
    held: tuple[int, ...]
    gained: frozenset[int]
    """The units that it did not hold in the previous generation."""


@dataclass(frozen=True, slots=True)
class Topic:
    """The position of a topic's units in the map."""

    name: str
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class ShareMap:
    """The map. Units are ordered by topic and number, members by their joins."""

    units: tuple[Unit, ...]
    topics: tuple[Topic, ...]
    rows: tuple[Row, ...]
    moved: int
    """Number of units with a new holder since the previous generation; 0 if unknown."""
    unowned: tuple[int, ...] = ()
    """The units of registered topics that no member holds."""

    @property
    def most(self) -> int:
        return max((len(row.held) for row in self.rows), default=0)

    @property
    def fewest(self) -> int:
        return min((len(row.held) for row in self.rows), default=0)

    @property
    def idle(self) -> int:
        """Number of members without a unit."""
        return sum(not row.held for row in self.rows)

    @property
    def skew(self) -> float:
        """The largest share divided by the mean: 1.0 is even."""
        held = sum(len(row.held) for row in self.rows)
        return self.most * len(self.rows) / held if held else 1.0


def share_map(
    protocol_type: str,
    shares: Mapping[str, bytes],
    former: Mapping[str, bytes] | None = None,
    unowned: Collection[Unit] = (),
) -> ShareMap | None:
    """Return the map of these shares and of expected units; None if the shares cannot be decoded."""
    now = {member_id: units_of(protocol_type, share) for member_id, share in shares.items()}
    if not now or any(units is None for units in now.values()):
        return None
    held = {member_id: set(units or ()) for member_id, units in now.items()}
    lacking = set(unowned).difference(*held.values())
    units = sorted(lacking.union(*held.values()), key=unit_order)
    number_of = {unit: number for number, unit in enumerate(units)}
    before = holders(protocol_type, former or {})
    rows = []
    for member_id, each in held.items():
        gained = {number_of[unit] for unit in each if before and member_id not in before.get(unit, ())}
        rows.append(Row(member_id, tuple(sorted(number_of[unit] for unit in each)), frozenset(gained)))
    moved = len({number for row in rows for number in row.gained})
    lacks = tuple(sorted(number_of[unit] for unit in lacking))
    return ShareMap(tuple(units), _topics(units), tuple(rows), moved, lacks)


def moves(protocol_type: str, shares: Mapping[str, bytes], former: Mapping[str, bytes]) -> int | None:
    """Return the number of units that changed holders between two generations; None if unknown."""
    drawn = share_map(protocol_type, shares, former)
    return drawn.moved if drawn is not None and former else None


def holders(protocol_type: str, shares: Mapping[str, bytes]) -> dict[Unit, set[str]]:
    """Return the holders of each unit: several if the strategy is redundant."""
    found: dict[Unit, set[str]] = {}
    for member_id, share in shares.items():
        for unit in units_of(protocol_type, share) or ():
            found.setdefault(unit, set()).add(member_id)
    return found


def units_of(protocol_type: str, share: bytes) -> list[Unit] | None:
    """Return an assignment's units; None if its type has no units."""
    if not share:
        return []
    decoded = readable_assignment(protocol_type, share)
    if protocol_type == PERMITS:
        return [] if decoded is None or decoded["permit"] is None else [(_PERMIT, int(decoded["permit"]))]
    decoded = decoded or {}
    by_topic = next((decoded[key] for key in _BY_TOPIC if isinstance(decoded.get(key), Mapping)), None)
    if by_topic is None:
        return None
    return [(str(topic), int(number)) for topic, numbers in by_topic.items() for number in numbers]


def in_words(units: Sequence[Unit]) -> str:
    """Format units as `orders 0-3, 7 · audit 1`."""
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(units, key=unit_order):
        by_topic.setdefault(topic, []).append(number)
    return " · ".join(f"{topic} {_ranges(numbers)}" for topic, numbers in by_topic.items())


def _ranges(numbers: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _topics(units: Sequence[Unit]) -> tuple[Topic, ...]:
    found: dict[str, list[int]] = {}
    for number, (topic, _) in enumerate(units):
        found.setdefault(topic, []).append(number)
    return tuple(Topic(name, numbers[0], len(numbers)) for name, numbers in found.items())


def unit_order(unit: Unit) -> tuple[list[tuple[int, str]], int]:
    """Return the sort key with numbers in numeric order: `t2` before `t10`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in _NUMBERS.split(unit[0])], unit[1]
