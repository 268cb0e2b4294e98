"""Log lines that name what a closing member waits for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from rota.protocol.defaults import REMIND_MS

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

    def ask(self, at_work: Callable[[], str]) -> None:
        """Replace the function that names the code: a pool names its shards."""
        self.at_work = at_work

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
