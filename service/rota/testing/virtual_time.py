"""An event loop with a clock that jumps to the next timer when nothing else is ready: hours pass in milliseconds."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from itertools import count
from typing import Any, TypeVar, TypeVarTuple, Unpack

from rota.server.runtime.clock import Clock

Arguments = TypeVarTuple("Arguments")
Outcome = TypeVar("Outcome")

START_S = 1_000.0


class Deadlock(AssertionError):
    """Every task waits, and no timer is set."""


class _Jump:
    """Takes the place of a selector: where a real one would block, it moves the clock on."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if self._loop.between_turns():
            return []
        if timeout is None:
            raise Deadlock("every task waits, and no timer is set")
        self._loop.pause(max(timeout, 0))
        return []


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """The standard loop on a clock of its own. It has no sockets, and calls of other threads do not wake it."""

    def __init__(self) -> None:
        super().__init__()
        self._now = START_S
        self.between_turns: Callable[[], bool] = nothing_between
        """Called before the clock moves on: whether it did anything."""
        self._selector = _Jump(self)

    def time(self) -> float:
        return self._now

    def pause(self, seconds: float) -> None:
        """Stop the whole process for so long: timers meanwhile fire late."""
        self._now += seconds

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Arguments]], Outcome], *args: *Arguments
    ) -> asyncio.Future[Outcome]:
        """What `asyncio.to_thread` hands over is done at once: the clock cannot wait for a thread."""
        if executor is not None:
            return super().run_in_executor(executor, func, *args)
        outcome: asyncio.Future[Outcome] = self.create_future()
        try:
            outcome.set_result(func(*args))
        except Exception as error:
            outcome.set_exception(error)
        return outcome

    def _process_events(self, events: list[Any]) -> None:
        """Called by the base class with what `select` returned: nothing."""

    def _write_to_self(self) -> None:
        """Called by the base class to wake a selector that waits: this one never does."""


def nothing_between() -> bool:
    """The step between the turns of a loop."""
    return False


class NumberedTask(asyncio.Task[Outcome]):
    """A task that sets keep in the order of its number: the order of memory addresses differs from run to run."""

    def __init__(self, number: int, coroutine: Coroutine[Any, Any, Outcome], **options: Any) -> None:
        self._number = number
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._number


class LoopClock(Clock):
    """The running event loop's time: a coordinator with this clock lives in virtual time, too."""

    def monotonic_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def now_ms(self) -> int:
        return self.monotonic_ms()


def number_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Have the loop make numbered tasks, so that the same seed cancels them in the same order."""
    numbers = count()

    def make(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any) -> NumberedTask[Any]:
        return NumberedTask(next(numbers), coroutine, loop=loop, **options)

    loop.set_task_factory(make)  # type: ignore[arg-type]


def pause(seconds: float) -> None:
    """Stop the process that runs this loop for so long."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop), "only in virtual time: see run"
    loop.pause(seconds)


def run(
    main: Coroutine[Any, Any, Outcome],
    *,
    timeout: float | None = 3_600,
    seed: int | str = 0,
) -> Outcome:
    """Run a program in virtual time: when all its tasks wait, the clock jumps to the next timer.

    `asyncio.sleep(3600)` takes no time. `time.time()` and `time.monotonic()` show the machine's time as ever. There are
    no sockets: a program that needs a database runs in real time, with `asyncio.run`, beside the same `Coordinator`.

    Args:
        main: The program.
        timeout: The longest that it may take, in virtual seconds; then `TimeoutError`. With None, `Deadlock` if every
            task waits, and no timer is set.
        seed: Of the module `random`, from which the SDK draws its pauses: each run is the same.
    """
    loop = VirtualTimeLoop()
    number_tasks(loop)

    async def limited() -> Outcome:
        async with asyncio.timeout(timeout):
            return await main

    before = random.getstate()
    random.seed(seed)
    try:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            try:
                return runner.run(limited())
            finally:
                _end_all(loop)
    finally:
        random.setstate(before)


def _end_all(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel every task, and those that it makes while it ends: the runner would drop these before their first step."""
    while tasks := asyncio.all_tasks(loop):
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
