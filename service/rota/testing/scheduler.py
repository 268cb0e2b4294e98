"""Virtual time: one heap of things to do, and processes that can die or be paused under them."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Process:
    """Something that runs on the world's clock. What a dead one still had to do is never done."""

    def __init__(self) -> None:
        self.dead = False
        self.paused_until_ms = 0


class Scheduler:
    """Runs due callbacks in the order of time, then of registration. It never reads the real clock."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.steps = 0
        self._heap: list[tuple[int, int, Process | None, Callable[..., None], tuple[Any, ...]]] = []
        self._asked = 0

    def after(self, delay_ms: int, process: Process | None, act: Callable[..., None], *args: Any) -> None:
        """Do `act(*args)` in `delay_ms`, unless `process` is dead by then; if it is paused, when it wakes."""
        self._asked += 1
        heapq.heappush(self._heap, (self.now_ms + delay_ms, self._asked, process, act, args))

    def run_until(self, end_ms: int) -> None:
        """Do everything that is due up to and including `end_ms`."""
        heap = self._heap
        while heap and heap[0][0] <= end_ms:
            at_ms, order, process, act, args = heapq.heappop(heap)
            self.now_ms = at_ms
            if process is not None:
                if process.dead:
                    continue
                if process.paused_until_ms > at_ms:
                    heapq.heappush(heap, (process.paused_until_ms, order, process, act, args))
                    continue
            self.steps += 1
            act(*args)
        self.now_ms = end_ms
