"""A signal that is set once, for tasks and threads alike: that work should stop, or that a copy is the active one."""

from __future__ import annotations

import asyncio
import threading


class FinalSignal(asyncio.Event):
    """An `asyncio.Event` that threads may wait for, too: `await signal.wait()`, or `signal.wait_in_thread(1.0)`.

    `is_set` may be called from any thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self._for_threads = threading.Event()

    def set(self) -> None:
        """Wake all tasks and threads that wait. Called on the event loop."""
        super().set()
        self._for_threads.set()

    def clear(self) -> None:
        """What was said stays said."""
        raise RuntimeError("this signal is never cleared")

    def wait_in_thread(self, timeout: float | None = None) -> bool:
        """Wait in a thread that runs no event loop, for at most `timeout` seconds; whether the signal is set."""
        return self._for_threads.wait(timeout)
