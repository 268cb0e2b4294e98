"""The assignment map, and the time axis of a group, as positions and sizes; templates create SVGs from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rota.protocol.wording import duration
from rota.server.console.rendering import short
from rota.server.console.shares import Row, ShareMap
from rota.server.observability.generations import Generation

NO_OWNER = "no owner"
"""The placeholder for a member id, which cannot contain a space."""
_LABEL_PX = 190
_COUNT_PX = 44
_ROW_PX = 26
_CELL_HEIGHT_PX = 18
_HEAD_PX = 40
_NAME_PX_PER_CHAR = 7.4
_MOST_CELLS = 1_500
"""Number of units above which each is drawn as one pixel of a stripe: single cells would be too large to send."""
_MOST_UNITS = 6_000
_MOST_ROWS = 200


@dataclass(frozen=True, slots=True)
class Cell:
    x: float
    y: float
    kind: str
    """`moved` is new at its member, `unowned` has no member."""
    title: str


@dataclass(frozen=True, slots=True)
class Stripe:
    """A member's share of very many units, as the path of an SVG."""

    path: str
    kind: str
    title: str


@dataclass(frozen=True, slots=True)
class Label:
    x: float
    y: float
    text: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A drawing in pixels. `cell` is the width of a unit, drawn alone or, of very many units, in stripes."""

    width: int
    height: int
    cell: float
    cell_height: int
    cells: tuple[Cell, ...]
    stripes: tuple[Stripe, ...]
    rows: tuple[Label, ...]
    counts: tuple[Label, ...]
    topics: tuple[Label, ...]
    numbers: tuple[Label, ...]
    lines: tuple[float, ...]
    left: int
    right: float


def draw(drawn: ShareMap) -> Drawing | None:
    """Draw the map; return None if it is too large."""
    rows = (*drawn.rows, Row(NO_OWNER, drawn.unowned, frozenset())) if drawn.unowned else drawn.rows
    units, members = len(drawn.units), len(rows)
    if units > _MOST_UNITS or members > _MOST_ROWS:
        return None
    cell, gap = _sizes(units)
    step, topic_gap = cell + gap, 12.0
    x_of = _columns(drawn, step, topic_gap)
    right = max(x_of[-1] + cell, *(_topic_end(drawn, x_of, one) for one in range(len(drawn.topics))))
    return Drawing(
        width=round(right + 8),
        height=_HEAD_PX + _ROW_PX * members + 6,
        cell=cell,
        cell_height=_CELL_HEIGHT_PX,
        cells=_cells(drawn, rows, x_of) if units <= _MOST_CELLS else (),
        stripes=_stripes(rows, x_of) if units > _MOST_CELLS else (),
        rows=tuple(Label(0, _y(n) + 14, short(row.member_id, 22), row.member_id) for n, row in enumerate(rows)),
        counts=tuple(Label(_LABEL_PX + 20, _y(n) + 14, str(len(row.held))) for n, row in enumerate(rows)),
        topics=tuple(Label(x_of[topic.first], 12, topic.name) for topic in drawn.topics),
        numbers=_numbers(drawn, x_of, cell),
        lines=tuple(_y(n) - 4 for n in range(members + 1)),
        left=_LABEL_PX + _COUNT_PX,
        right=right,
    )


def _sizes(units: int) -> tuple[float, float]:
    """Return the width of a unit, and the distance to the next one."""
    if units <= 60:
        return 18.0, 3.0
    if units <= 300:
        return 9.0, 2.0
    return (3.0, 1.0) if units <= _MOST_CELLS else (1.0, 0.0)


def _columns(drawn: ShareMap, step: float, topic_gap: float) -> list[float]:
    """Return the position of each unit; topics' names must not overlap."""
    x, places = float(_LABEL_PX + _COUNT_PX), []
    for topic in drawn.topics:
        places += [x + number * step for number in range(topic.count)]
        x += max(topic.count * step, len(topic.name) * _NAME_PX_PER_CHAR) + topic_gap
    return places


def _topic_end(drawn: ShareMap, x_of: list[float], number: int) -> float:
    topic = drawn.topics[number]
    return x_of[topic.first] + len(topic.name) * _NAME_PX_PER_CHAR


def _cells(drawn: ShareMap, rows: Sequence[Row], x_of: list[float]) -> tuple[Cell, ...]:
    return tuple(
        Cell(x_of[unit], _y(number), _kind(row, unit), _title(drawn, row.member_id, unit, unit in row.gained))
        for number, row in enumerate(rows)
        for unit in row.held
    )


def _stripes(rows: Sequence[Row], x_of: list[float]) -> tuple[Stripe, ...]:
    found: list[Stripe] = []
    for number, row in enumerate(rows):
        for moved in (False, True):
            units = [unit for unit in row.held if (unit in row.gained) is moved]
            if units:
                path = "".join(f"M{x_of[unit]:g} {_y(number):g}h1v{_CELL_HEIGHT_PX}h-1z" for unit in units)
                title = f"{row.member_id}: {len(units)} of {len(x_of)}{', new here' if moved else ''}"
                found.append(Stripe(path, _kind(row, units[0]), title))
    return tuple(found)


def _kind(row: Row, unit: int) -> str:
    return "unowned" if row.member_id == NO_OWNER else "moved" if unit in row.gained else ""


def _numbers(drawn: ShareMap, x_of: list[float], cell: float) -> tuple[Label, ...]:
    """Return partition numbers below the topics' names, as many as fit."""
    every = 1 if cell >= 18 else 5 if cell >= 9 else 25 if cell >= 3 else 100
    return tuple(
        Label(x_of[topic.first + n] + cell / 2, 28, str(drawn.units[topic.first + n][1]))
        for topic in drawn.topics
        for n in range(0, topic.count, every)
    )


def _title(drawn: ShareMap, member_id: str, unit: int, moved: bool) -> str:
    topic, number = drawn.units[unit]
    return f"{topic} {number}: {member_id}{', new here' if moved else ''}"


def _y(row: int) -> float:
    return float(_HEAD_PX + row * _ROW_PX)


# --- the time axis: rebalances, the time that each blocked the group, and the number of members -----

WIDTH = 1_000
_LANE_PX = 34
_MEMBERS_PX = 56
_MOST_BARS = 300
"""Maximum number of drawn rebalances: the latest ones."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A rebalance; its width is its duration."""

    x: float
    width: float
    cause: str
    title: str


@dataclass(frozen=True, slots=True)
class Axis:
    """From `begin_ms` to `end_ms`, over `WIDTH` units. `members` is the path of a line of steps."""

    begin_ms: int
    end_ms: int
    bars: tuple[Bar, ...]
    members: str
    most_members: int
    blocked_ms: int
    """The blocked time of all drawn rebalances."""
    width: int = WIDTH
    lane: int = _LANE_PX
    height: int = _LANE_PX + _MEMBERS_PX

    @property
    def blocked_share(self) -> float:
        """The blocked part of the shown time, in per cent."""
        return 100 * self.blocked_ms / max(1, self.end_ms - self.begin_ms)


def axis_of(story: Sequence[Generation], now_ms: int) -> Axis | None:
    """Return the axis; None before the first generation."""
    shown = [each for each in story if each.started_at_ms is not None or each.completed_at_ms is not None][-_MOST_BARS:]
    if not shown:
        return None
    begin_ms = min(_began(each) for each in shown)
    span_ms = max(1, now_ms - begin_ms)

    def x(at_ms: int) -> float:
        return round(WIDTH * (at_ms - begin_ms) / span_ms, 1)

    bars, blocked_ms = list[Bar](), 0
    for each in shown:
        ended_ms = each.assigned_at_ms or each.completed_at_ms or now_ms
        took_ms = max(0, ended_ms - _began(each))
        blocked_ms += took_ms
        title = f"generation {each.generation_id}: {duration(took_ms)}, {each.reason or 'no reason was given'}"
        bars.append(Bar(x(_began(each)), max(1.5, round(WIDTH * took_ms / span_ms, 1)), each.cause, title))
    counts = [(each.completed_at_ms, len(each.member_ids)) for each in shown if each.completed_at_ms is not None]
    most = max((count for _, count in counts), default=0)
    return Axis(begin_ms, now_ms, tuple(bars), _steps([(x(at), n) for at, n in counts], most), most, blocked_ms)


def _began(generation: Generation) -> int:
    return generation.started_at_ms or generation.completed_at_ms or 0


def _steps(points: Sequence[tuple[float, int]], most: int) -> str:
    """Return the path of an SVG below the lane of the bars."""
    if not points:
        return ""

    def y(count: int) -> float:
        return round(_LANE_PX + _MEMBERS_PX - 4 - (_MEMBERS_PX - 12) * count / max(1, most), 1)

    path = [f"M{points[0][0]} {y(points[0][1])}"]
    path += [f"H{at}V{y(count)}" for at, count in points[1:]]
    return "".join(path) + f"H{WIDTH}"
