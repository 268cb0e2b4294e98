"""The event loop of one simulated process: asyncio's rules, on the clock of a simulated world.

Each replica has a loop of its own, so that it can be stopped or killed like a process. A paused process does nothing
until it wakes, and then finds all its timers late; a dead one never runs again, without any task being cancelled.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from itertools import count
from typing import Any, TypeVarTuple

from rota.testing.scheduler import Process, Scheduler
from rota.testing.virtual_time import NumberedTask

Arguments = TypeVarTuple("Arguments")

MOST_TURNS_AT_ONCE = 2_000
"""More turns than this without any time passing: a task never waits."""
TURNS_TO_END = 200
LONGEST_EXECUTOR_MS = 20


class Spinning(AssertionError):
    """A task runs again and again without waiting for anything."""


class ProcessLoop(asyncio.BaseEventLoop):
    """A loop without sockets. What comes from outside of its process arrives through the scheduler."""

    def __init__(
        self,
        scheduler: Scheduler,
        process: Process,
        started_ms: int,
        on_error: Callable[[str], None],
        *,
        is_interrupted: bool,
    ) -> None:
        super().__init__()
        self._scheduler = scheduler
        self._process = process
        self._is_interrupted = is_interrupted
        self._started_ms = started_ms
        """What the monotonic clock of the process showed when the world began."""
        self._on_error = on_error
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[int, int, asyncio.TimerHandle]] = []
        self._numbers = count()
        self._is_armed = False
        self._is_ending = False
        self._tasks: list[asyncio.Task[Any]] = []
        """All that were ever made: those of a dead process must not be collected while they are pending."""
        self._turned_ms = -1
        self._turns = 0
        self._has_paused = False
        """Whether a callback of this turn has."""
        self.run_threads: Callable[[], bool] = _has_no_threads
        """Called when no callback is ready: runs the process's threads until they block; whether any ran."""

    # --- time ------------------------------------------------------------------------------------

    def monotonic_ms(self) -> int:
        return self._started_ms + self._scheduler.now_ms

    def time(self) -> float:
        return (self._started_ms + self._scheduler.now_ms) / 1000

    def pause(self, seconds: float) -> None:
        """Stop the process, in one of its callbacks: the others, and its timers, are late."""
        self._has_paused = True
        self._process.paused_until_ms = self._scheduler.now_ms + int(seconds * 1000)

    # --- callbacks -------------------------------------------------------------------------------

    def call_soon(
        self, callback: Callable[[*Arguments], object], *args: *Arguments, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        self._arm()
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Arguments], object], *args: *Arguments, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Arguments], object], *args: *Arguments, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        # Never early: a clock of whole milliseconds shows the time of a timer when that has passed.
        at_ms = max(-int(-(when * 1000 - 1e-6) // 1), self.monotonic_ms())
        heapq.heappush(self._timers, (at_ms, next(self._numbers), timer))
        self._scheduler.after(at_ms - self.monotonic_ms(), self._process, self._wake)
        return timer

    def _timer_handle_cancelled(self, timer: asyncio.TimerHandle) -> None:
        """Called by asyncio: a cancelled timer stays in the heap until its time comes."""

    def _arm(self) -> None:
        if not self._is_armed and not self._is_ending:
            self._is_armed = True
            self._scheduler.after(0, self._process, self._turn)

    def _wake(self) -> None:
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        if self._timers and self._timers[0][0] <= self.monotonic_ms():
            self._arm()

    def _turn(self) -> None:
        """The timers that are due become ready, then what is ready by now runs, and what that makes ready in turn.

        If `is_interrupted`, messages of the same moment may arrive in between.
        """
        timers, ready, now_ms = self._timers, self._ready, self.monotonic_ms()
        while timers and timers[0][0] <= now_ms:
            ready.append(heapq.heappop(timers)[2])
        self._turns = self._turns if now_ms == self._turned_ms else 0
        self._turned_ms, self._has_paused = now_ms, False
        asyncio._set_running_loop(self)
        try:
            while (ready or self.run_threads()) and not (self._process.dead or self._has_paused):
                self._turns += 1
                if self._turns > MOST_TURNS_AT_ONCE:
                    raise Spinning(f"{MOST_TURNS_AT_ONCE} turns of an event loop without any time passing")
                self._run(len(ready))
                if self._is_interrupted:
                    break
        finally:
            asyncio._set_running_loop(None)
        self._is_armed = False
        if ready:
            self._arm()

    def run_ready(self) -> None:
        """Run all ready callbacks, so that the process can stop without a decided answer that waits to leave."""
        asyncio._set_running_loop(self)
        try:
            while self._ready and (self._is_ending or not self._process.dead):
                self._run(len(self._ready))
        finally:
            asyncio._set_running_loop(None)

    def _run(self, handles: int) -> None:
        ready, process = self._ready, self._process
        for _ in range(handles):
            if (process.dead or self._has_paused) and not self._is_ending:
                return
            handle: Any = ready.popleft()
            if not handle._cancelled:
                try:
                    handle._context.run(handle._callback, *handle._args)
                except Exception as error:
                    self.call_exception_handler({"message": f"exception in {handle!r}", "exception": error})

    # --- what asyncio asks of a loop ----------------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coroutine: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:  # type: ignore[override]
        """A task with a number, because the order of a set of tasks must be the same in each run."""
        task = NumberedTask(next(self._numbers), coroutine, loop=self, **options)
        self._tasks.append(task)
        return task

    def _write_to_self(self) -> None:
        """Called by asyncio when a thread of the process has added a callback."""
        self._arm()

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """The function runs a little later, as in a thread that is slow; in an executor of the process, in a thread."""
        if executor is not None:
            return asyncio.wrap_future(executor.submit(function, *args), loop=self)
        outcome = self.create_future()

        def run() -> None:
            try:
                found = function(*args)
            except Exception as error:
                if not outcome.done():
                    outcome.set_exception(error)
            else:
                if not outcome.done():
                    outcome.set_result(found)

        self._scheduler.after(1 + next(self._numbers) % LONGEST_EXECUTOR_MS, self._process, run)
        return outcome

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._is_ending:
            self._on_error(f"{context.get('message')}: {context.get('exception')!r}")

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return asyncio._get_running_loop() is self

    # --- the end of the world --------------------------------------------------------------------

    def end(self) -> None:
        """Cancel remaining tasks, so that none is destroyed while it is pending. Only when the world is over."""
        self._is_ending = True
        for _ in range(TURNS_TO_END):
            tasks = [task for task in self._tasks if not task.done()]
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            self.run_ready()
        self.close()


def _has_no_threads() -> bool:
    return False


def pause(seconds: float) -> None:
    """Stop the process that runs this callback for so long. A thread that is slow stops no process."""
    if isinstance(loop := asyncio._get_running_loop(), ProcessLoop):
        loop.pause(seconds)
