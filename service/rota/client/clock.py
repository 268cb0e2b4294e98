"""The clock of deadlines, which continues while the machine is asleep, and the measurement of an event loop's lag."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from rota.protocol.defaults import LOOP_BLOCKED_MS

_NOISE_S = 0.1
"""Two clocks cannot be read at the same moment; a smaller difference is not sleep."""


def suspended_s() -> float:
    """Return for how long this machine has been suspended since it booted; 0 if the system does not say.

    CLOCK_MONOTONIC, which event loops use, stops while a Linux machine sleeps; CLOCK_BOOTTIME does not.
    """
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)


class SessionClock:
    """The event loop's clock plus the time that the machine has been suspended since this object was created."""

    def __init__(self, loop: asyncio.AbstractEventLoop, suspended: Callable[[], float] = suspended_s) -> None:
        self._loop = loop
        self._suspended = suspended
        self._suspended_before_s = suspended()
        self._asleep_s = 0.0

    @property
    def asleep_s(self) -> float:
        """Return for how long the machine has been suspended since this clock was created."""
        asleep_s = self._suspended() - self._suspended_before_s
        if asleep_s > self._asleep_s + _NOISE_S:
            self._asleep_s = asleep_s
        return self._asleep_s

    def now_ms(self) -> int:
        # Loops fire timers up to their clock's resolution early; a timer that fires must not read an earlier time than
        # its own.
        return int((self._loop.time() + self.asleep_s) * 1000 + 1e-3)

    def loop_time(self, at_ms: int) -> float:
        """Convert a moment of this clock to seconds of the event loop's clock, if the machine stays awake."""
        return at_ms / 1000 - self.asleep_s


_INTERVAL_S = 0.1
_log = logging.getLogger(__name__)


class LoopLag:
    """Measures continuously by how much timers of its loop fire late."""

    def __init__(self, on_resume: Callable[[], None] = lambda: None) -> None:
        """`on_resume` is called when the machine has been asleep."""
        self._on_resume = on_resume
        self.last = 0.0
        """Lag in seconds at the last measurement, ten times a second."""
        self.worst = 0.0
        """The largest lag so far, in seconds."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._measure(), name="rota loop lag")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _measure(self) -> None:
        loop = asyncio.get_running_loop()
        clock, asleep_s = SessionClock(loop), 0.0
        while True:
            due = loop.time() + _INTERVAL_S
            await asyncio.sleep(_INTERVAL_S)
            if clock.asleep_s > asleep_s:
                asleep_s = clock.asleep_s
                self._on_resume()
            self.last = max(0.0, loop.time() - due)
            self.worst = max(self.worst, self.last)
            if self.last >= LOOP_BLOCKED_MS / 1000:
                _log.warning(
                    "the event loop was blocked for %.1f s: it could send no heartbeat; "
                    "move blocking code to a thread, or connect with heartbeat_thread=True",
                    self.last,
                )
