"""The time axis of a group: its rebalances, the time that each blocked the group, and its number of members."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rota.protocol.wording import duration
from rota.server.observability.generations import Generation

WIDTH = 1_000
_LANE_PX = 34
_MEMBERS_PX = 56
_MOST = 300
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

    @property
    def width(self) -> int:
        return WIDTH

    @property
    def lane(self) -> int:
        return _LANE_PX

    @property
    def height(self) -> int:
        return _LANE_PX + _MEMBERS_PX

    @property
    def blocked_share(self) -> float:
        """The blocked part of the shown time, in per cent."""
        return 100 * self.blocked_ms / max(1, self.end_ms - self.begin_ms)


def axis_of(story: Sequence[Generation], now_ms: int) -> Axis | None:
    """Return the axis; None before the first generation."""
    shown = [each for each in story if each.started_at_ms is not None or each.completed_at_ms is not None][-_MOST:]
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
