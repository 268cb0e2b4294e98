"""Threads in virtual time: one runs at a time, in an order that is the same in each run.

Each is a thread of a simulated process. It runs only while the event loop of that process stands still, until it
blocks or ends. What blocks is `threading.Condition.wait`, on which events, futures and queues of the standard library
are built: while a `SimulatedThreads` is open, a thread that waits there hands the turn back to the loop.
"""

from __future__ import annotations

import _thread
import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from tests.simulation.loop import ProcessLoop


class Abandoned(BaseException):
    """The world is over: raised in a thread where it blocks."""


@dataclass(slots=True, eq=False)
class _Thread:
    loop: ProcessLoop
    is_ready: Callable[[], bool]
    turn: _thread.LockType = field(default_factory=_thread.allocate_lock)

    def __post_init__(self) -> None:
        self.turn.acquire()


class SimulatedThreads:
    """All threads of a world. As a `with` block it takes the place of the standard library's waits."""

    def __init__(self) -> None:
        self._waiting: list[_Thread] = []
        self._by_thread: dict[int, _Thread] = {}
        self._back = _thread.allocate_lock()
        self._back.acquire()
        self._is_over = False
        self._wait = threading.Condition.wait
        self._submit = ThreadPoolExecutor.submit

    def __enter__(self) -> Self:
        threads = self

        def wait(condition: Any, timeout: float | None = None) -> bool:
            return threads._wait_on(condition, timeout)

        def submit(_pool: Any, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
            loop = asyncio._get_running_loop() or threads._by_thread[_thread.get_ident()].loop
            assert isinstance(loop, ProcessLoop)
            return threads.submit(loop, lambda: function(*arguments, **named))

        threading.Condition.wait = wait  # type: ignore[method-assign, assignment]
        ThreadPoolExecutor.submit = submit  # type: ignore[method-assign]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        threading.Condition.wait = self._wait  # type: ignore[method-assign]
        ThreadPoolExecutor.submit = self._submit  # type: ignore[method-assign]

    def end(self) -> None:
        """End all threads where they block."""
        self._is_over = True
        while self._waiting:
            self._give_turn(self._waiting.pop(0))

    def submit(self, loop: ProcessLoop, function: Callable[[], Any]) -> Future[Any]:
        """Run a function in a thread of this process."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        thread = _Thread(loop, lambda: True)
        self._waiting.append(thread)
        _thread.start_new_thread(self._run, (thread, function, future))
        return future

    def run_ready(self, loop: ProcessLoop) -> bool:
        """Give their turn to all threads of a process that need not wait any more; whether there were any."""
        ready = [thread for thread in self._waiting if thread.loop is loop and thread.is_ready()]
        for thread in ready:
            self._waiting.remove(thread)
            self._give_turn(thread)
        return bool(ready)

    def _give_turn(self, thread: _Thread) -> None:
        thread.turn.release()
        self._back.acquire()

    def _run(self, thread: _Thread, function: Callable[[], Any], future: Future[Any]) -> None:
        thread.turn.acquire()
        self._by_thread[_thread.get_ident()] = thread
        try:
            outcome = None if self._is_over else function()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(outcome)
        del self._by_thread[_thread.get_ident()]
        self._back.release()

    def _block(self, thread: _Thread, is_ready: Callable[[], bool]) -> None:
        """Hand the turn to the loop until `is_ready`."""
        if not self._is_over:
            thread.is_ready = is_ready
            self._waiting.append(thread)
            self._back.release()
            thread.turn.acquire()
        if self._is_over:
            raise Abandoned

    def _wait_on(self, condition: Any, timeout: float | None) -> bool:
        """As `threading.Condition.wait`, which is where a thread blocks."""
        thread = self._by_thread.get(_thread.get_ident())
        if thread is None:
            return self._wait(condition, timeout)
        waiter = _thread.allocate_lock()
        waiter.acquire()
        condition._waiters.append(waiter)
        saved = condition._release_save()
        try:
            return self._wait_for(thread, waiter, timeout)
        finally:
            condition._acquire_restore(saved)
            if waiter in condition._waiters:
                condition._waiters.remove(waiter)

    def _wait_for(self, thread: _Thread, waiter: _thread.LockType, timeout: float | None) -> bool:
        notified: list[bool] = []
        loop = thread.loop
        until = None if timeout is None else loop.time() + timeout
        if until is not None:
            loop.call_at(until, _nothing)

        def is_ready() -> bool:
            if waiter.acquire(blocking=False):
                notified.append(True)
            return bool(notified) or (until is not None and loop.time() >= until)

        self._block(thread, is_ready)
        return bool(notified)


def _nothing() -> None:
    """A timer at which the loop's clock stops."""
