"""Passing on every signal that a process can catch, to whatever runs at that moment."""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from rota.client import Member
from rota.client.stop_deadline import Step
from rota.exec.ending import BY_SIGNAL
from rota.exec.run import Ended, Run
from rota.exec.stopping import TERMINATED

# Signals for this process itself: its faults, its children, its pipes and its place at the terminal.
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
"""Those that end a wrapper that has nothing to hand them to."""


class Signals:
    """Passes every signal on to the commands of a wrapper. The first SIGTERM, or one that ends a wrapper without a
    command, begins the deadline of the stop; a second one leaves no time to the command.
    """

    def __init__(self, member: Member[Any], drain_ms: int, runs: Callable[[], Collection[Run]]) -> None:
        self.ended_by = 0
        """The signal by which the wrapper ends."""
        self._deadline = member._deadline
        self._drain_s = drain_ms / 1000
        self._runs = runs
        self._limit: asyncio.Timeout | None = None

    async def until_stopped(self, working: Coroutine[Any, Any, int]) -> int:
        """The exit code of `working`, which is cancelled once a stop leaves it no time."""
        at = self._deadline.by(Step.COMMIT)
        try:
            async with asyncio.timeout_at(None if at == math.inf else at) as self._limit:
                return await working
        except TimeoutError:
            if self._limit is None or not self._limit.expired():
                raise
            return BY_SIGNAL + self.ended_by
        finally:
            self._limit = None

    def exit_code(self, ended: Ended) -> int:
        """How the wrapper ends with its command."""
        return BY_SIGNAL + self.ended_by if ended.exit_code is None else ended.exit_code

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Receive each signal that can be caught and is not ignored, on the running event loop."""
        loop = asyncio.get_running_loop()
        numbers = [
            number
            for number in signal.valid_signals()
            # Ignored signals stay ignored, by the command, too: nohup relies on it.
            if number not in _OWN and signal.getsignal(number) is not signal.SIG_IGN
        ]
        for number in numbers:
            loop.add_signal_handler(number, self.receive, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def receive(self, number: int) -> None:
        """Handle one signal."""
        runs, is_first = self._runs(), not self.ended_by
        # A running command may understand SIGHUP or SIGQUIT as anything, and handle SIGINT.
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
                loop_time = asyncio.get_running_loop().time()
                self._limit.reschedule(self._deadline.by(Step.COMMIT) if runs else loop_time)
