"""How a process of the demo notices that the demo is gone, however that came about."""

from __future__ import annotations

import asyncio
import sys


def set_when_orphaned(stopped: asyncio.Event) -> None:
    """Set the event when standard input ends: it is a pipe, and the process at its other end has ended."""
    loop = asyncio.get_running_loop()
    descriptor = sys.stdin.fileno()

    def on_readable() -> None:
        # Nothing is ever sent, so that it can be read means that it is over.
        loop.remove_reader(descriptor)
        stopped.set()

    loop.add_reader(descriptor, on_readable)
