"""Retries of work that raises: with growing pauses, which are reset after the work has run well for a while."""

from __future__ import annotations

from collections.abc import Callable

from rota.core.membership.backoff import Backoff
from rota.protocol.defaults import WORK_RETRY_CAP_MS, WORK_RETRY_FIRST_MS

_HEALTHY_MS = WORK_RETRY_CAP_MS
"""After this time of running, work has recovered, and its next failure counts as the first."""


class WorkRetry:
    """The consecutive failures of one work, and the time of its next attempt."""

    def __init__(self, jitter: Callable[[], float], now_ms: Callable[[], int]) -> None:
        self._jitter = jitter
        self._now_ms = now_ms
        self._backoff = Backoff(WORK_RETRY_FIRST_MS, WORK_RETRY_CAP_MS)
        self._failure: BaseException | None = None
        self._began_at_ms: int | None = None
        self._due_at_ms = 0

    @property
    def failures(self) -> int:
        """The number of consecutive failures."""
        return self._backoff.failures

    @property
    def failure(self) -> BaseException | None:
        """The last exception; None before the first, and after the work has run well for half a minute."""
        began_at_ms = self._began_at_ms
        is_well = began_at_ms is not None and self._now_ms() >= began_at_ms + _HEALTHY_MS
        return None if is_well else self._failure

    @property
    def pause_s(self) -> float:
        """The time until the next try."""
        return max(0, self._due_at_ms - self._now_ms()) / 1000

    def begin(self) -> None:
        """Note that the work starts."""
        self._began_at_ms = self._now_ms()

    def fail(self, error: BaseException) -> None:
        """Note that the work raised."""
        if self.failure is None:
            self._backoff.reset()
        self._failure, self._began_at_ms = error, None
        self._due_at_ms = self._now_ms() + self._backoff.next_ms(0.5 + self._jitter() / 2)
