"""Exponential back-off with full jitter; the randomness is the caller's."""

from __future__ import annotations


class Backoff:
    """Counts failures in a row and says how long to wait after the last one.

    Full jitter (a random share of the whole step) spreads a thousand members that failed
    together; equal steps would have them all come back together, too.
    """

    def __init__(self, first_ms: int, cap_ms: int) -> None:
        self._first_ms = first_ms
        self._cap_ms = cap_ms
        self.failures = 0

    def next_ms(self, jitter: float, cap_ms: int | None = None) -> int:
        """The wait after one more failure; `jitter` is a random number from 0 to 1."""
        step_ms = self._first_ms * 2 ** min(self.failures, 20)
        self.failures += 1
        return int(min(step_ms, self._cap_ms, cap_ms or self._cap_ms) * jitter)

    def reset(self) -> None:
        self.failures = 0
