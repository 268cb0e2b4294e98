"""SIGTERM and SIGINT during a `run()`: the first signal stops in order, the second at once.

A signal that the program handles itself is not touched: a web server in the same process, for example, ends its `run()`
by cancellation or by `stop()`. After the second signal the former handlers are restored, so that a third one ends the
process.
"""

from __future__ import annotations

import asyncio
import functools
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_STOPPING = (signal.SIGTERM, signal.SIGINT)


class StopRequests:
    """The number of requests to end a `run()`. Threads and signal handlers may add one."""

    def __init__(self) -> None:
        self.in_order = asyncio.Event()
        """Set by the first request."""
        self.at_once = asyncio.Event()
        """Set by the second request."""
        self.by_signal = False
        """Whether a signal made a request."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked = 0

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Handle requests in this loop, including earlier ones."""
        self._loop = loop
        self._publish()

    def add(self, *, by_signal: bool = False) -> None:
        """Add a request. Safe in any thread and in a signal handler."""
        self.by_signal = self.by_signal or by_signal
        self._asked += 1
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._publish)

    def _publish(self) -> None:
        if self._asked >= 1:
            self.in_order.set()
        if self._asked >= 2:
            self.at_once.set()


class _Handlers:
    """The process's signal handlers while any `run()` needs them; only the main thread accesses them."""

    def __init__(self) -> None:
        self._running: list[StopRequests] = []
        self._former: dict[int, Any] = {}
        self._received = 0

    def add(self, requests: StopRequests) -> None:
        self._running.append(requests)
        if len(self._running) == 1:
            self._received = 0
            self._former = {number: former for number in _STOPPING if _is_default(former := signal.getsignal(number))}
            for number in self._former:
                signal.signal(number, self._receive)

    def remove(self, requests: StopRequests) -> None:
        self._running.remove(requests)
        if not self._running:
            self._restore()

    def _receive(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._received += 1
        for requests in self._running:
            requests.add(by_signal=True)
        if self._received >= 2:
            self._restore()

    def _restore(self) -> None:
        for number, former in self._former.items():
            if signal.getsignal(number) == self._receive:
                signal.signal(number, former)
        self._former = {}


_handlers = _Handlers()


@contextmanager
def stopped_by_signals(requests: StopRequests, *, enabled: bool = True) -> Iterator[None]:
    """Turn SIGTERM and SIGINT into requests, in the main thread, unless the program handles these signals itself."""
    if not enabled or threading.current_thread() is not threading.main_thread():
        yield
        return
    _handlers.add(requests)
    try:
        yield
    finally:
        _handlers.remove(requests)


def _is_default(handler: Any) -> bool:
    """Return whether the program has not handled a signal; `asyncio.run` has its own handler for SIGINT."""
    if handler in (signal.SIG_DFL, signal.default_int_handler):
        return True
    return isinstance(handler, functools.partial) and isinstance(
        getattr(handler.func, "__self__", None), asyncio.Runner
    )
