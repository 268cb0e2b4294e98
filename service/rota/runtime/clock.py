"""The runtime's time: wall-clock milliseconds that never go back and never jump."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two readings of one passing of time, so that a test can put its own in place."""

    def now_ms(self) -> int:
        """Milliseconds since 1970 as of the process's start, counted on by the monotonic clock.

        A jump of the machine's clock moves no deadline: the jump is not seen until the next start.
        """

    def monotonic_ms(self) -> int:
        """Milliseconds of the monotonic clock, for leases and waits."""


class SystemClock:
    """The machine's clocks."""

    def __init__(self) -> None:
        self._offset_ms = time.time_ns() // 1_000_000 - time.monotonic_ns() // 1_000_000

    def now_ms(self) -> int:
        return self.monotonic_ms() + self._offset_ms

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
