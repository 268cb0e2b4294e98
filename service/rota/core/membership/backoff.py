"""The earliest time of the next call: after a pause that grows with failures, or as the coordinator asks.

The caller supplies the randomness.
"""

from __future__ import annotations

from rota.core.membership.settings import MembershipSettings
from rota.protocol.defaults import LONGEST_RETRY_AFTER_MS, REQUEST_TIMEOUT_MS


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
        """All is well: the next failure is the first."""
        self.failures = 0


# --- the pace of a member -------------------------------------------------------------------------


_PENDING_SPACING_MS = 200
"""Between two calls that the coordinator answers with "pending" at once instead of parking them."""


class Pace(Backoff):
    """Nothing is sent before `not_before_ms`."""

    def __init__(self, settings: MembershipSettings) -> None:
        super().__init__(settings.backoff_first_ms, settings.backoff_cap_ms)
        self._longest_retry_after_ms = min(LONGEST_RETRY_AFTER_MS, max(REQUEST_TIMEOUT_MS, settings.session_timeout_ms))
        self.not_before_ms = 0
        self._was_early = False

    def at_once(self, now_ms: int) -> None:
        self.not_before_ms = now_ms

    def pause(self, now_ms: int, jitter: float, cap_ms: int) -> None:
        """After one more failure, for at most `cap_ms`."""
        self.not_before_ms = now_ms + self.next_ms(jitter, cap_ms)

    def pending(self, sent_at_ms: int, now_ms: int) -> None:
        """A parked call ended without news: call again at once, but not in a loop where parking does not work."""
        was_early, self._was_early = self._was_early, now_ms - sent_at_ms < _PENDING_SPACING_MS
        self.not_before_ms = sent_at_ms + _PENDING_SPACING_MS if was_early and self._was_early else now_ms

    def retry_after(self, retry_after_ms: int, now_ms: int, patience_ends_ms: int | None) -> None:
        """The coordinator asks for patience; but waiting leaves time for two more calls before `patience_ends_ms`."""
        wait_ms = min(retry_after_ms, self._longest_retry_after_ms)
        if patience_ends_ms is not None:
            wait_ms = min(wait_ms, max(0, patience_ends_ms - now_ms) // 3)
        self.not_before_ms = max(self.not_before_ms, now_ms + wait_ms)
