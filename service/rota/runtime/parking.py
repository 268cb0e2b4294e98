"""The end of parked calls' time, by one timer of the event loop for all calls of a shard that may wait equally long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import takewhile
from typing import TypeAlias

Line: TypeAlias = dict[int, float]
"""Calls that may wait equally long, by number in the order of their arrival, each with its end by the loop's clock."""

_TICK_S = 0.001
"""Timers of uvloop count in milliseconds."""


class Parking:
    """Ends each parked call when its time is over, for calls that are known by numbers.

    The calls of a line end in its order, so the first one alone has a timer. It fires also where that call was answered
    meanwhile, and is set anew for the first one that is left. A timer for each call, set and cancelled, costs a tenth
    of a rebalance.
    """

    def __init__(self, ends: Callable[[int], None]) -> None:
        """`ends` gets the number of a call whose time is over."""
        self._ends = ends
        self._lines: dict[int, Line] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        """Of each line, by its milliseconds. A line is forgotten when its timer finds no call in it."""

    def park(self, number: int, wait_ms: int) -> Line:
        """End this call after so long, unless the caller takes it out of the line that is returned."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_ms / 1000
        line = self._lines.get(wait_ms)
        if line is None:
            line = self._lines[wait_ms] = {}
            self._timers[wait_ms] = loop.call_at(until, self._fire, wait_ms)
        line[number] = until
        return line

    def stop(self) -> None:
        """End no call any more."""
        for timer in self._timers.values():
            timer.cancel()

    def _fire(self, wait_ms: int) -> None:
        loop, line = asyncio.get_running_loop(), self._lines[wait_ms]
        now = loop.time() + _TICK_S
        due = list(takewhile(lambda number: line[number] <= now, line))
        for number in due:
            del line[number]
        first = next(iter(line), None)
        if first is None:
            del self._lines[wait_ms], self._timers[wait_ms]
        else:
            self._timers[wait_ms] = loop.call_at(line[first], self._fire, wait_ms)
        for number in due:
            self._ends(number)
