"""What a member that closes waits for, in the program's log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from rota.protocol.defaults import REMIND_MS

_REMIND_S = REMIND_MS / 1000
_log = logging.getLogger(__name__)


def cancelled_for(since: float | None) -> str:
    """How long ago the work was cancelled that is named before this; empty unless it was."""
    return "" if since is None else f", cancelled {asyncio.get_running_loop().time() - since:.1f} s ago,"


class Reminder:
    """Logs every 10 s which code of the program has not ended, for a process that seems to hang.

    It runs on timers and not in a task: it goes on while `asyncio.run` waits for tasks that ignore their cancellation.
    """

    def __init__(self, subject: str, at_work: Callable[[], str]) -> None:
        self._subject = subject
        self.at_work: Callable[[], str] = at_work
        """Names the program's code that runs; empty where none does."""
        self._timer: asyncio.TimerHandle | None = None

    def ask(self, at_work: Callable[[], str]) -> None:
        """Name other code than at first: a pool knows its shards."""
        self.at_work = at_work

    def start(self) -> None:
        """Begin to log, unless that has begun."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_REMIND_S, self._remind, loop, loop.time())

    def stop(self) -> None:
        """All has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _remind(self, loop: asyncio.AbstractEventLoop, began_at: float) -> None:
        self._timer = None
        if what := self.at_work():
            _log.warning("%s: waiting for %.0f s for %s to end", self._subject, loop.time() - began_at, what)
            self._timer = loop.call_later(_REMIND_S, self._remind, loop, began_at)
