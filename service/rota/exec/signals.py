"""Passing on every signal that a process can catch, to whatever runs at that moment."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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


@contextmanager
def caught(handle: Callable[[int], None]) -> Iterator[None]:
    """Have `handle` called, on the running event loop, with each signal that can be caught and is not ignored."""
    loop = asyncio.get_running_loop()
    numbers = [
        number
        for number in signal.valid_signals()
        # Ignored signals stay ignored, by the command, too: nohup relies on it.
        if number not in _OWN and signal.getsignal(number) is not signal.SIG_IGN
    ]
    for number in numbers:
        loop.add_signal_handler(number, handle, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
