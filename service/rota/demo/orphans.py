"""Detection of the demo's end by its processes, whatever its cause."""

from __future__ import annotations

import asyncio
import sys


def set_when_orphaned(stopped: asyncio.Event) -> None:
    """Set the event when standard input ends: it is a pipe, and the process at its other end has ended."""
    loop = asyncio.get_running_loop()
    descriptor = sys.stdin.fileno()

    def on_readable() -> None:
        # The demo never writes to it, so it is readable only when the demo has ended.
        loop.remove_reader(descriptor)
        stopped.set()

    loop.add_reader(descriptor, on_readable)
