"""Progress, separate from liveness: a program that hangs loses the share that its healthy sidecar would
hold forever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from rota.agents.sidecar.membership import Membership
from rota.client.seconds import to_ms
from rota.core.membership.deadline import ProcessingWatchdog

_LONGEST_LOOK_S = 1.0

_log = logging.getLogger(__name__)


class Progress:
    """Releases the share if the program has not reported progress for too long, until it does so again."""

    def __init__(self, membership: Membership, timeout_s: float | None) -> None:
        self._membership = membership
        self._timeout_s = timeout_s
        self._watchdog = ProcessingWatchdog(to_ms(timeout_s))
        self._hangs = False
        self._come_back_at: float | None = None
        self._changed = asyncio.Event()

    def made(self) -> None:
        """Note that the program made progress."""
        self._watchdog.progressed(self._now_ms())
        if self._hangs:
            self._hangs = False
            self.come_back_in(0.0)
        self._changed.set()

    def come_back_in(self, seconds: float) -> None:
        """Join again after this time, unless the program hangs."""
        self._come_back_at = asyncio.get_running_loop().time() + seconds
        self._changed.set()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await self._look()
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._look_in_s()):
                    await self._changed.wait()

    async def _look(self) -> None:
        now_ms = self._now_ms()
        if self._come_back_at is not None and not self._hangs and now_ms >= self._come_back_at * 1000:
            self._come_back_at = None
            self._membership.come_back()
        if not self._membership.holds_something:
            self._watchdog.rest()
        elif self._watchdog.due_at_ms is None:
            # The share is new: its time starts now.
            self._watchdog.progressed(now_ms)
        elif self._watchdog.is_over(now_ms):
            self._hangs = True
            self._watchdog.rest()
            _log.error("no progress for %g s: the share is released", self._timeout_s)
            await self._membership.resign("no progress")

    def _look_in_s(self) -> float:
        now_ms = self._now_ms()
        alarms_ms = [int(at * 1000) for at in (self._come_back_at,) if at is not None]
        alarms_ms += [at_ms for at_ms in (self._watchdog.due_at_ms,) if at_ms is not None]
        if not alarms_ms:
            return _LONGEST_LOOK_S if self._timeout_s is None else min(_LONGEST_LOOK_S, self._timeout_s / 4)
        return max(0.005, min(_LONGEST_LOOK_S, (min(alarms_ms) - now_ms) / 1000))

    def _now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)
