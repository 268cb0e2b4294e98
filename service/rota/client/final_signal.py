"""A signal for tasks and threads that is set once: work should stop, or a copy is the active one."""

from __future__ import annotations

import asyncio
import threading


class FinalSignal(asyncio.Event):
    """An `asyncio.Event` for which threads may also wait: `await signal.wait()`, or `signal.wait_in_thread(1.0)`.

    `is_set` may be called from any thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self._for_threads = threading.Event()

    def set(self) -> None:
        """Wake all waiting tasks and threads. Must be called on the event loop."""
        super().set()
        self._for_threads.set()

    def clear(self) -> None:
        """Raise: a set signal stays set."""
        raise RuntimeError("this signal is never cleared")

    def wait_in_thread(self, timeout: float | None = None) -> bool:
        """Wait in a thread without an event loop for at most `timeout` seconds; return whether the signal is set."""
        return self._for_threads.wait(timeout)
