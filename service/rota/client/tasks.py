"""Background tasks, whose owner handles their errors and ends them when it ends, and a signal that is set once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True)
class Contained(Generic[Outcome]):
    """How a coroutine ended, including an exit of the program, which would end the loop if raised on it."""

    value: Outcome | None = None
    error: BaseException | None = None

    def result(self) -> Outcome:
        if self.error is not None:
            raise self.error
        return cast(Outcome, self.value)


async def contained(coroutine: Coroutine[Any, Any, Outcome]) -> Contained[Outcome]:
    """Return the outcome of `coroutine`; only its cancellation is raised. For a task: see `Contained`."""
    try:
        return Contained(await coroutine)
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return Contained(error=error)


async def first_of(*awaited: asyncio.Future[Any] | asyncio.Event) -> None:
    """Return when one of these futures is done, or one of these events is set. Its cancellation cancels no future."""
    events = [asyncio.ensure_future(each.wait()) for each in awaited if isinstance(each, asyncio.Event)]
    futures = [each for each in awaited if not isinstance(each, asyncio.Event)]
    try:
        await asyncio.wait((*events, *futures), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in events:
            each.cancel()


async def until_ended(future: asyncio.Future[Any]) -> None:
    """Return when `future` has ended. Cancellations meanwhile are raised only then."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        future.cancelled() or future.exception()
        raise cancelled


class BackgroundTasks:
    """Unlike in a `TaskGroup`, an error does not cancel the other tasks: the owner ends them in its own order."""

    def __init__(self, on_error: Callable[[BaseException], None]) -> None:
        self._on_error = on_error
        self._tasks: set[asyncio.Task[Any]] = set()

    def create(self, coroutine: Coroutine[Any, Any, Outcome], name: str | None = None) -> asyncio.Task[Outcome | None]:
        """Run `coroutine`. Its exception is passed to the owner, and the task returns None."""
        task = asyncio.create_task(self._guarded(coroutine), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(
            lambda _: coroutine.close()
        )  # A task that is cancelled before it starts never awaits its coroutine.
        return task

    async def cancel(self, timeout_s: float) -> bool:
        """Cancel all tasks and wait for their end; return False if some still run after `timeout_s`."""
        tasks = self._tasks - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
        return all(task.done() for task in tasks)

    async def _guarded(self, coroutine: Coroutine[Any, Any, Outcome]) -> Outcome | None:
        try:
            return await coroutine
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._on_error(error)
            return None


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
