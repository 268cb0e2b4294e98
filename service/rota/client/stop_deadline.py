"""The single deadline of a stop: each step gets the time left by earlier steps, and leaves time for later ones.

Log lines name what a stop waits for.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection
from enum import Enum
from typing import Any

from rota.client.options import STOP_DRAIN_S
from rota.protocol.defaults import REMIND_MS, STOP_REST_MS

_REST_S = STOP_REST_MS / 1000
_RESOLUTION_S = 1e-6


class Step(Enum):
    """The steps of a stop in order, each with the part of the time after the drain at which it ends."""

    WORK = 0.0
    """Work that reads `stopping` has ended; other work is cancelled."""
    CLEAN_UP = 0.32
    """Cancelled work has cleaned up, and `on_revoked` has returned; otherwise it is cancelled."""
    COMMIT = 0.56
    """The last commits are answered."""
    LOSS = 0.68
    """A cancelled `on_revoked` and `on_lost` have ended; otherwise the group is not left."""
    LEAVE = 0.88
    """The LeaveGroup is answered."""
    END = 1.0


class StopDeadline:
    """A member's deadline for all waits of its stop: unlimited before `shorten`, and never later after it."""

    def __init__(self) -> None:
        self._drain_by = math.inf
        self._shortened = asyncio.Event()

    def shorten(self, drain_s: float = STOP_DRAIN_S) -> None:
        """End a stop `drain_s` and the time of its other steps from now, unless it must end earlier."""
        self._drain_by = min(self._drain_by, asyncio.get_running_loop().time() + drain_s)
        self._shortened.set()
        self._shortened.clear()

    def lift(self) -> None:
        """Remove the deadline: the stop is over, and the member joins again."""
        self._drain_by = math.inf

    def by(self, step: Step) -> float:
        """Return the deadline of a step, in the event loop's clock."""
        return self._drain_by + step.value * _REST_S

    def left_s(self, step: Step) -> float:
        """Return the remaining time of a step; 0 after its deadline."""
        left_s = self.by(step) - asyncio.get_running_loop().time()
        # Loops fire timers up to their clock's resolution early: do not wait for a due timer again.
        return left_s if left_s > _RESOLUTION_S else 0.0

    async def wait(self, futures: Collection[asyncio.Future[Any]], step: Step, limit_s: float = math.inf) -> bool:
        """Wait until all of `futures` are done, or the step's deadline; return whether all are done.

        Without a stop, only `limit_s` applies. Futures that are added meanwhile are included.
        """
        ends_at = asyncio.get_running_loop().time() + limit_s
        while pending := {future for future in futures if not future.done()}:
            left_s = min(self.left_s(step), ends_at - asyncio.get_running_loop().time())
            if left_s <= _RESOLUTION_S:
                return False
            shortened = asyncio.ensure_future(self._shortened.wait())
            try:
                timeout_s = None if left_s == math.inf else left_s
                await asyncio.wait({*pending, shortened}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                shortened.cancel()
        return True


_REMIND_S = REMIND_MS / 1000
_log = logging.getLogger(__name__)


def cancelled_for(since: float | None) -> str:
    """Return how long ago the named work was cancelled, as text; empty if it was not."""
    return "" if since is None else f", cancelled {asyncio.get_running_loop().time() - since:.1f} s ago,"


class Reminder:
    """Logs every 10 s which code of the program has not ended, for a process that seems to hang.

    It runs on timers and not in a task, so it continues while `asyncio.run` waits for tasks that ignore their
    cancellation.
    """

    def __init__(self, subject: str, at_work: Callable[[], str]) -> None:
        self._subject = subject
        self.at_work: Callable[[], str] = at_work
        """Names the program's code that runs; empty if no code runs."""
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start to log, unless already started."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_REMIND_S, self._remind, loop, loop.time())

    def stop(self) -> None:
        """Stop logging."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _remind(self, loop: asyncio.AbstractEventLoop, began_at: float) -> None:
        self._timer = None
        if what := self.at_work():
            _log.warning("%s: waiting for %.0f s for %s to end", self._subject, loop.time() - began_at, what)
            self._timer = loop.call_later(_REMIND_S, self._remind, loop, began_at)
