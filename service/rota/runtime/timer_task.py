"""The task that sleeps until the next timer and rings it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rota.group.result import Timer
from rota.runtime.clock import Clock
from rota.runtime.timers import TimerQueue

LONGEST_SLEEP_S = 3_600.0


class TimerTask:
    """Run `run()` as a task that somebody awaits; `set` may be called at any time."""

    def __init__(self, clock: Clock, on_late: Callable[[int], None]) -> None:
        self._clock = clock
        self._queue = TimerQueue(clock, on_late)
        self._wake = asyncio.Event()

    def set(self, timer: Timer, ring: Callable[[Timer], None]) -> None:
        if self._queue.set(timer, ring):
            self._wake.set()

    async def run(self) -> None:
        while True:
            self._wake.clear()
            await self._sleep()
            self._queue.ring_due()
            await asyncio.sleep(0)

    async def _sleep(self) -> None:
        at_ms = self._queue.next_at_ms()
        delay_s = LONGEST_SLEEP_S if at_ms is None else (at_ms - self._clock.now_ms()) / 1000
        if delay_s <= 0:
            return
        try:
            async with asyncio.timeout(delay_s):
                await self._wake.wait()
        except TimeoutError:
            pass
