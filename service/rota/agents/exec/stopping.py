"""The times at which a command is asked to stop (SIGTERM) and is killed: before the deadline of its grant.

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
    """The time for a command to stop, and the margin before its deadline."""

    grace_ms: int
    margin_ms: int

    @classmethod
    def for_session(cls, session_timeout_ms: int, grace_ms: int | None = None) -> StopTimes:
        """Return the times that fit into a session.

        A member with answered heartbeats always has three quarters of its session left. The rest after grace and margin
        is the time for which a run survives a failure: see the calculation in `docs/explanation/failures.md`.

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

    @property
    def look_s(self) -> float:
        """The interval at which a wrapper checks for renewals."""
        return self.margin_ms / 1000 / 4

    def kill_at_ms(self, valid_until_ms: int) -> int:
        """Return when the guardian kills the command."""
        return valid_until_ms - self.margin_ms

    def term_at_ms(self, valid_until_ms: int) -> int:
        """Return when the guardian sends TERM, so that the command has its full grace."""
        return self.kill_at_ms(valid_until_ms) - self.grace_ms

    def backstop_at_ms(self, valid_until_ms: int) -> int:
        """Return when the wrapper kills the command because the guardian is paused or starved."""
        return valid_until_ms - self.margin_ms // 2


class Step(StrEnum):
    """The next step."""

    NOTHING = "nothing"
    TERM = "term"
    KILL = "kill"


class Stopping:
    """A run's states: running, asked to stop, killed. They never go back: after TERM a renewal is too late."""

    def __init__(self, times: StopTimes, valid_until_ms: int) -> None:
        self._times = times
        self._valid_until_ms = valid_until_ms
        self._stop_by_ms: int | None = None
        self._termed = False
        self.reason = ""
        """Why the run stops; empty while it may run."""

    def renewed(self, valid_until_ms: int) -> None:
        """Set the deadline of the grant, which may be earlier than the former one."""
        self._valid_until_ms = valid_until_ms

    def stop(self, now_ms: int, reason: str, grace_ms: int | None = None) -> None:
        """Stop the run while the grant is held, within its own grace or `grace_ms`. The first reason and the earliest
        end apply.
        """
        stop_by_ms = now_ms + (self._times.grace_ms if grace_ms is None else grace_ms)
        if self._stop_by_ms is None:
            self.reason, self._stop_by_ms = reason, stop_by_ms
        self._stop_by_ms = min(stop_by_ms, self._stop_by_ms)

    def lose(self, now_ms: int, reason: str) -> None:
        """Stop at once: another member may already have the grant."""
        self.reason = reason
        self._stop_by_ms = now_ms

    def due(self, now_ms: int) -> Step:
        """Return the current step. TERM is returned once; KILL repeatedly, because a process that forks may escape one
        signal.
        """
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
        """Return when `due` may change."""
        if self._stop_by_ms is None:
            return self._times.term_at_ms(self._valid_until_ms)
        return self._kill_at_ms()

    def _kill_at_ms(self) -> int:
        assert self._stop_by_ms is not None
        return min(self._stop_by_ms, self._times.kill_at_ms(self._valid_until_ms))
