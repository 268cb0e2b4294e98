"""Forwarding of every signal that a process can catch to the running commands."""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import Callable, Collection, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any

from rota.agents.exec.ending import BY_SIGNAL
from rota.agents.exec.run import Ended, Run
from rota.agents.exec.stopping import TERMINATED
from rota.client import Member
from rota.client.stop_deadline import Step

# Signals for this process itself: faults, children, pipes and control of the terminal.
_OWN = {
    signal.SIGKILL,
    signal.SIGSTOP,
    signal.SIGCHLD,
    signal.SIGPIPE,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGTRAP,
    signal.SIGSYS,
}
ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
"""Signals that end a wrapper without a command."""


class Signals:
    """Forwards every signal to the commands of a wrapper. The first SIGTERM, or one that ends a wrapper without a
    command, starts the deadline of the stop; a second one leaves no time to the command.
    """

    def __init__(self, member: Member[Any], drain_s: float, runs: Callable[[], Collection[Run]]) -> None:
        self.ended_by = 0
        """The signal that ends the wrapper."""
        self._deadline = member._deadline
        self._drain_s = drain_s
        self._runs = runs
        self._limit: asyncio.Timeout | None = None

    async def run_in(
        self, block: AbstractAsyncContextManager[Any], work: Callable[[Signals], Coroutine[Any, Any, int]]
    ) -> int:
        """Work in the block of a membership, and return the exit code. The work is cancelled when a stop has no time
        left. All signals are received that can be caught and are not ignored.
        """
        loop = asyncio.get_running_loop()
        # Ignored signals stay ignored in the command, too: nohup relies on it.
        numbers = [each for each in signal.valid_signals() - _OWN if signal.getsignal(each) is not signal.SIG_IGN]
        for number in numbers:
            loop.add_signal_handler(number, self._receive, number)
        try:
            async with block:
                return await self._until_stopped(work(self))
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    async def _until_stopped(self, working: Coroutine[Any, Any, int]) -> int:
        at = self._deadline.by(Step.COMMIT)
        limit = self._limit = asyncio.timeout_at(None if at == math.inf else at)
        try:
            async with limit:
                return await working
        except TimeoutError:
            if not limit.expired():
                raise
            return BY_SIGNAL + self.ended_by
        finally:
            self._limit = None

    def exit_code(self, ended: Ended) -> int:
        """Return the wrapper's exit code after the end of its command."""
        return BY_SIGNAL + self.ended_by if ended.exit_code is None else ended.exit_code

    def _receive(self, number: int) -> None:
        runs, is_first = self._runs(), not self.ended_by
        # A running command may give SIGHUP or SIGQUIT any meaning, and handle SIGINT.
        if number in (ENDING if not runs else (signal.SIGTERM, signal.SIGINT)):
            self.ended_by = self.ended_by or number
        for run in runs:
            if number == signal.SIGTERM and is_first:
                run.stop(TERMINATED, self._drain_s)
            else:
                run.forward(number)
        if number == signal.SIGTERM or (number in ENDING and not runs):
            self._deadline.shorten(self._drain_s if is_first else 0.0)
            if self._limit is not None:
                self._limit.reschedule(self._deadline.by(Step.COMMIT) if runs else 0.0)
