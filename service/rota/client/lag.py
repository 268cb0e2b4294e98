"""Measurement of an event loop's lag: a blocked loop sends no heartbeats, and the log names that cause of a loss."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from rota.client.clock import SessionClock
from rota.protocol.defaults import LOOP_BLOCKED_MS

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
