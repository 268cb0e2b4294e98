"""Threads in virtual time: one runs at a time, in an order that is the same in each run.

A strand is a thread of a simulated process. It runs only while the event loop of that process stands still, until it
blocks or ends. What blocks is `threading.Condition.wait`, on which events, futures and queues of the standard library
are built: while a `Strands` is open, a strand that waits there hands the turn back to the loop.
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
    """The world is over: raised in a strand where it blocks."""


@dataclass(slots=True, eq=False)
class _Strand:
    loop: ProcessLoop
    is_ready: Callable[[], bool]
    turn: _thread.LockType = field(default_factory=_thread.allocate_lock)

    def __post_init__(self) -> None:
        self.turn.acquire()


class Strands:
    """All strands of a world. As a `with` block it takes the place of the standard library's waits."""

    def __init__(self) -> None:
        self._waiting: list[_Strand] = []
        self._by_thread: dict[int, _Strand] = {}
        self._back = _thread.allocate_lock()
        self._back.acquire()
        self._is_over = False
        self._wait = threading.Condition.wait
        self._submit = ThreadPoolExecutor.submit

    def __enter__(self) -> Self:
        strands = self

        def wait(condition: Any, timeout: float | None = None) -> bool:
            return strands._wait_on(condition, timeout)

        def submit(_pool: Any, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
            loop = asyncio._get_running_loop() or strands._by_thread[_thread.get_ident()].loop
            assert isinstance(loop, ProcessLoop)
            return strands.submit(loop, lambda: function(*arguments, **named))

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
        """End all strands where they block."""
        self._is_over = True
        while self._waiting:
            self._give_turn(self._waiting.pop(0))

    def submit(self, loop: ProcessLoop, function: Callable[[], Any]) -> Future[Any]:
        """Run a function in a strand of this process."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        strand = _Strand(loop, lambda: True)
        self._waiting.append(strand)
        _thread.start_new_thread(self._run, (strand, function, future))
        return future

    def run_ready(self, loop: ProcessLoop) -> bool:
        """Give their turn to all strands of a process that need not wait any more; whether there were any."""
        ready = [strand for strand in self._waiting if strand.loop is loop and strand.is_ready()]
        for strand in ready:
            self._waiting.remove(strand)
            self._give_turn(strand)
        return bool(ready)

    def _give_turn(self, strand: _Strand) -> None:
        strand.turn.release()
        self._back.acquire()

    def _run(self, strand: _Strand, function: Callable[[], Any], future: Future[Any]) -> None:
        strand.turn.acquire()
        self._by_thread[_thread.get_ident()] = strand
        try:
            outcome = None if self._is_over else function()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(outcome)
        del self._by_thread[_thread.get_ident()]
        self._back.release()

    def _block(self, strand: _Strand, is_ready: Callable[[], bool]) -> None:
        """Hand the turn to the loop until `is_ready`."""
        if not self._is_over:
            strand.is_ready = is_ready
            self._waiting.append(strand)
            self._back.release()
            strand.turn.acquire()
        if self._is_over:
            raise Abandoned

    def _wait_on(self, condition: Any, timeout: float | None) -> bool:
        """As `threading.Condition.wait`, which is where a strand blocks."""
        strand = self._by_thread.get(_thread.get_ident())
        if strand is None:
            return self._wait(condition, timeout)
        waiter = _thread.allocate_lock()
        waiter.acquire()
        condition._waiters.append(waiter)
        saved = condition._release_save()
        try:
            return self._wait_for(strand, waiter, timeout)
        finally:
            condition._acquire_restore(saved)
            if waiter in condition._waiters:
                condition._waiters.remove(waiter)

    def _wait_for(self, strand: _Strand, waiter: _thread.LockType, timeout: float | None) -> bool:
        notified: list[bool] = []
        loop = strand.loop
        until = None if timeout is None else loop.time() + timeout
        if until is not None:
            loop.call_at(until, _nothing)

        def is_ready() -> bool:
            if waiter.acquire(blocking=False):
                notified.append(True)
            return bool(notified) or (until is not None and loop.time() >= until)

        self._block(strand, is_ready)
        return bool(notified)


def _nothing() -> None:
    """A timer at which the loop's clock stops."""
