"""The clock of deadlines: it continues while the machine is asleep, and any thread may read it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

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
