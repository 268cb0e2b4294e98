"""Which session timeout a group should have: from how regularly its members were heard.

A timeout costs on both sides. Too short, and a member that is only late is expired, and the group rebalances for
nothing; too long, and the share of a dead one waits. The histograms of gaps say how often each would have happened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rota.group.gaps import CLASSES, class_end_ms
from rota.pipeline.facts.fact import Event, Fact, Row, State, apart_ms, row, us
from rota.pipeline.facts.view import GroupView
from rota.pipeline.tables import TIMEOUT_ADVICE

ALLOWED_PER_DAY = 0.01
"""False expiries a member and day: one member in a hundred, once a day."""
LEAST_MS = 1_000
DAY_MS = 86_400_000
_FEWEST_GAPS = 500
"""With fewer than that, the histogram says little about rare gaps."""
_HEADROOM = 1.5
"""Nobody can promise that the longest gap was seen already."""


class Advice(NamedTuple):
    """What a group's timeout costs and which one would fit; None where too little is known. Columns of the table."""

    recommended_ms: int | None
    false_expiries_per_day: float
    recommended_false_per_day: float | None
    detection_saved_ms: int | None


def recommend(
    gaps: Sequence[int],
    longest_gap_ms: int,
    member_ms: int,
    session_timeout_ms: int,
    allowed_per_day: float = ALLOWED_PER_DAY,
) -> Advice:
    """From a group's histograms, added up; members were counted for `member_ms`, all together."""
    days = max(member_ms, 1) / DAY_MS
    today = _longer_than(gaps, session_timeout_ms) / days
    if sum(gaps) < _FEWEST_GAPS:
        return Advice(None, today, None, None)
    shortest_ms = _shortest(gaps, days * allowed_per_day, longest_gap_ms)
    wanted_ms = _round_up(max(LEAST_MS, int(_HEADROOM * shortest_ms)))
    return Advice(wanted_ms, today, _longer_than(gaps, wanted_ms) / days, session_timeout_ms - wanted_ms)


class Timeouts(Fact):
    """One open day: the advice by all statistics so far. The first statistics of another day close it."""

    table = TIMEOUT_ADVICE

    def __init__(self, state: State | None = None) -> None:
        self.state: State = state or {}

    def add(self, event: Event, view: GroupView) -> Iterator[Row]:
        day = event.at_ms // DAY_MS
        if event.kind == "group_deleted" or (self.state and day > self.state["at_ms"] // DAY_MS):
            yield from self.open_rows(view)
        if event.kind == "group_deleted":
            self.state.clear()
        else:
            self._count(event)

    def open_rows(self, view: GroupView) -> Iterator[Row]:
        state = self.state
        if not state:
            return
        gaps = [state["gaps"].get(str(number), 0) for number in range(CLASSES)]
        summed = {name: state[name] for name in ("longest_gap_ms", "member_ms", "session_timeout_ms")}
        advice = recommend(gaps, **summed)
        yield row(TIMEOUT_ADVICE, **view.key, at=us(state["at_ms"]), gaps=gaps, **summed, **advice._asdict())

    def _count(self, event: Event) -> None:
        members = event.payload["members"]
        state = self.state = self.state or {"gaps": {}, "longest_gap_ms": 0, "member_ms": 0, "at_ms": event.at_ms}
        # Owners' clocks differ: a day that is over does not come again.
        state["at_ms"] = max(state["at_ms"], event.at_ms)
        state["session_timeout_ms"] = max(session_ms for _, _, session_ms, *_ in members)
        for _, _, _, from_ms, longest_gap_ms, counted in members:
            state["member_ms"] += apart_ms(from_ms, event.at_ms)
            state["longest_gap_ms"] = max(state["longest_gap_ms"], longest_gap_ms)
            for number, count in counted:
                # JSON's keys are text, so they are text from the beginning.
                state["gaps"][str(number)] = state["gaps"].get(str(number), 0) + count


def _shortest(gaps: Sequence[int], allowed: float, longest_gap_ms: int) -> int:
    """The shortest timeout that no more than the allowed number of gaps exceed."""
    exceeding = 0
    for number in range(len(gaps) - 1, -1, -1):
        exceeding += gaps[number]
        if exceeding > allowed:
            return min(class_end_ms(number) + 1, longest_gap_ms + 1)
    return LEAST_MS


def _longer_than(gaps: Sequence[int], timeout_ms: int) -> int:
    return sum(count for number, count in enumerate(gaps) if class_end_ms(number) > timeout_ms)


def _round_up(timeout_ms: int) -> int:
    step = 500 if timeout_ms < 10_000 else 1_000 if timeout_ms < 60_000 else 5_000
    return -(-timeout_ms // step) * step
