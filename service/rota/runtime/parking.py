"""The end of parked calls' time, by one timer of the event loop for all calls of a shard that may wait equally long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

_TICK_S = 0.001
"""Timers of uvloop count in milliseconds."""


@dataclass(slots=True, eq=False)
class Line:
    """Calls that may wait equally long, and the timer that ends the first of them or finds it answered."""

    wait_ms: int
    timer: asyncio.TimerHandle
    ends_s: dict[int, float]
    """By number in the order of their arrival, the end of each by the loop's clock."""


class Parking:
    """Ends each parked call when its time is over, for calls that are known by numbers.

    The calls of a line end in its order, so the first one alone has a timer. It fires also where that call was answered
    meanwhile, and is set anew for the first one that is left. A timer for each call, set and cancelled, costs a tenth
    of a rebalance. A line is forgotten with its last call: its table is as large as it was when most calls were parked.
    """

    def __init__(self, ends: Callable[[int], None]) -> None:
        """`ends` gets the number of a call whose time is over."""
        self._ends = ends
        self._lines: dict[int, Line] = {}
        """By milliseconds. Each has a call."""

    def __len__(self) -> int:
        """The number of lines."""
        return len(self._lines)

    def park(self, number: int, wait_ms: int) -> Line:
        """End this call after so long, unless it leaves the line that is returned."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_ms / 1000
        line = self._lines.get(wait_ms)
        if line is None:
            line = self._lines[wait_ms] = Line(wait_ms, loop.call_at(until_s, self._fire, wait_ms), {})
        line.ends_s[number] = until_s
        return line

    def leave(self, line: Line, number: int) -> None:
        """Do not end this call any more, if it has not ended yet."""
        if line.ends_s.pop(number, None) is not None and not line.ends_s:
            line.timer.cancel()
            del self._lines[line.wait_ms]

    def stop(self) -> None:
        """End no call any more, and let go of what would end them, which as a rule holds this object."""
        for line in self._lines.values():
            line.timer.cancel()
        self._ends = _end_none

    def _fire(self, wait_ms: int) -> None:
        loop, line = asyncio.get_running_loop(), self._lines[wait_ms]
        now_s = loop.time() + _TICK_S
        due = list(takewhile(lambda number: line.ends_s[number] <= now_s, line.ends_s))
        for number in due:
            del line.ends_s[number]
        first = next(iter(line.ends_s), None)
        if first is None:
            del self._lines[wait_ms]
        else:
            line.timer = loop.call_at(line.ends_s[first], self._fire, wait_ms)
        for number in due:
            self._ends(number)


def _end_none(_number: int) -> None:
    return
