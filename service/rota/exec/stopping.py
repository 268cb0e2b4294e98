"""When a command is asked to stop (SIGTERM) and when it is killed: before the deadline of its grant.

Pure: times are milliseconds of one clock that the caller reads.

    grant's deadline  ────────────────────────────────────────────┤ valid_until_ms
    guardian           … runs … │ TERM ── grace ── │ KILL         │
    wrapper, if the guardian does not move          ── margin/2 ──│ KILL, too
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rota.protocol.defaults import COMMAND_GRACE_MS, COMMAND_MARGIN_MS

COMMAND_ENDED = "the command has ended"
TERMINATED = "it received SIGTERM"
_MIN_MARGIN_MS = 50


@dataclass(frozen=True, slots=True)
class StopTimes:
    """How long a command may take to stop, and how much earlier than its deadline it must be gone."""

    grace_ms: int
    margin_ms: int

    @classmethod
    def for_session(cls, session_timeout_ms: int, grace_ms: int | None = None) -> StopTimes:
        """The times that fit into a session.

        A member with answered heartbeats always has three quarters of its session left. What exceeds grace and margin
        is the time for which a run survives a failure: see the sums in `docs/explanation/failures.md`.

        Raises:
            ValueError: The grace is longer than a quarter of the session.
        """
        longest_ms = session_timeout_ms // 4
        if grace_ms is not None and grace_ms > longest_ms:
            raise ValueError(
                f"a grace of {grace_ms} ms is longer than a quarter of the session, which is {longest_ms} ms"
            )
        grace_ms = min(session_timeout_ms // 5, COMMAND_GRACE_MS) if grace_ms is None else grace_ms
        return cls(grace_ms, max(_MIN_MARGIN_MS, min(session_timeout_ms // 10, COMMAND_MARGIN_MS)))

    def kill_at_ms(self, valid_until_ms: int) -> int:
        """When the guardian kills."""
        return valid_until_ms - self.margin_ms

    def term_at_ms(self, valid_until_ms: int) -> int:
        """When the guardian tells the command to stop, so that it still has its grace."""
        return self.kill_at_ms(valid_until_ms) - self.grace_ms

    def backstop_at_ms(self, valid_until_ms: int) -> int:
        """When the wrapper kills what the guardian has not: it is stopped, or starved."""
        return valid_until_ms - self.margin_ms // 2


class Step(StrEnum):
    """The next step."""

    NOTHING = "nothing"
    TERM = "term"
    KILL = "kill"


class Stopping:
    """A run's way from running over asked to stop to killed. There is no way back: after TERM a renewal is too late."""

    def __init__(self, times: StopTimes, valid_until_ms: int) -> None:
        self._times = times
        self._valid_until_ms = valid_until_ms
        self._stop_by_ms: int | None = None
        self._termed = False
        self.reason = ""
        """Why it stops; empty while it may run."""

    def renewed(self, valid_until_ms: int) -> None:
        """The grant lasts until then. It may also be shorter than was said before."""
        self._valid_until_ms = valid_until_ms

    def stop(self, now_ms: int, reason: str, grace_ms: int | None = None) -> None:
        """It is to end while the grant is still held: by its own grace, or by `grace_ms`. The first reason counts, and
        the earliest end.
        """
        stop_by_ms = now_ms + (self._times.grace_ms if grace_ms is None else grace_ms)
        if self._stop_by_ms is None:
            self.reason, self._stop_by_ms = reason, stop_by_ms
        self._stop_by_ms = min(stop_by_ms, self._stop_by_ms)

    def lose(self, now_ms: int, reason: str) -> None:
        """Another member may have the grant already: nothing may run any longer."""
        self.reason = reason
        self._stop_by_ms = now_ms

    def due(self, now_ms: int) -> Step:
        """What to do now. TERM is said once; KILL for as long as it is asked, since what forks may slip through one."""
        if self._stop_by_ms is None and now_ms >= self._times.term_at_ms(self._valid_until_ms):
            self.stop(now_ms, "deadline")
        if self._stop_by_ms is None:
            return Step.NOTHING
        if now_ms >= self._kill_at_ms():
            return Step.KILL
        if self._termed:
            return Step.NOTHING
        self._termed = True
        return Step.TERM

    def next_at_ms(self) -> int:
        """When `due` may have something new to say."""
        if self._stop_by_ms is None:
            return self._times.term_at_ms(self._valid_until_ms)
        return self._kill_at_ms()

    def _kill_at_ms(self) -> int:
        assert self._stop_by_ms is not None
        return min(self._stop_by_ms, self._times.kill_at_ms(self._valid_until_ms))
