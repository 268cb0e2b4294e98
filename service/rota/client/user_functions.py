"""The program's functions: which functions can work here, what they may do, and retries of work that raises."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from rota.core.membership.backoff import Backoff
from rota.protocol.defaults import WORK_RETRY_CAP_MS, WORK_RETRY_FIRST_MS

Outcome = TypeVar("Outcome")


def name_of(function: object) -> str:
    """The name of a function, a method or a callable object, for messages."""
    inner = _unwrapped(function)
    return getattr(inner, "__qualname__", None) or type(inner).__qualname__


def check_async_work(work: object) -> None:
    """Reject an argument that is no async function: a plain function would block the event loop.

    A plain function that returns an awaitable is accepted: its result is checked by `run_work`.

    Raises:
        TypeError: It is no function, a generator, the result of a call, or a plain function that is annotated to return
            None.
    """
    if inspect.isawaitable(work):
        if inspect.iscoroutine(work):
            work.close()
        raise TypeError(f"work must be an async function, not the result of calling one: {work!r}")
    if not callable(work):
        raise TypeError(f"work must be an async function, not {work!r}")
    code = _code_of(work)
    if inspect.isasyncgenfunction(code) or inspect.isgeneratorfunction(code):
        raise TypeError(f"{name_of(work)} is a generator, because it has a yield; work must be an async function")
    is_async = inspect.iscoroutinefunction(code) or inspect.iscoroutinefunction(work)
    if not is_async and getattr(code, "__annotations__", {}).get("return", ...) in (None, "None"):
        raise TypeError(_plain(work))


async def run_work(work: Callable[[Any], Awaitable[Outcome]], subject: Any) -> Outcome:
    """Call `work`, and wait for its end.

    Raises:
        TypeError: Its result cannot be awaited.
    """
    outcome = work(subject)
    if not inspect.isawaitable(outcome):
        raise TypeError(_plain(work, f": it returned {outcome!r}"))
    with own_cancellations_are_errors(work):
        return await outcome


def check_plain(function: Callable[..., Any]) -> None:
    """Reject an async function, because functions are called in a thread.

    Raises:
        TypeError: It is an async function.
    """
    code = _code_of(function)
    if inspect.iscoroutinefunction(code) or inspect.isasyncgenfunction(code):
        raise TypeError(_async(function))


def check_plain_result(function: Callable[..., Any], outcome: object) -> None:
    """Check as `check_plain` does, for functions that only their result shows to be async."""
    if inspect.iscoroutine(outcome):
        outcome.close()
    if inspect.isawaitable(outcome) or isinstance(outcome, AsyncIterator):
        raise TypeError(_async(function))


@contextmanager
def own_cancellations_are_errors(function: Callable[..., Any]) -> Iterator[None]:
    """Raise RuntimeError instead of a CancelledError if the current task was not cancelled.

    A program that awaits a cancelled future has failed; its error would otherwise look like a normal end.
    """
    try:
        yield
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise RuntimeError(
            f"{name_of(function)} raised CancelledError, but was not cancelled: something that it awaited was"
        ) from error


def _plain(work: object, detail: str = "") -> str:
    return (
        f"{name_of(work)} is no async function{detail}. A plain function would block the event loop: "
        "make it `async def`, or use rota.client.sync, which calls plain functions in threads"
    )


def _async(function: object) -> str:
    return (
        f"{name_of(function)} is an async function, and rota.client.sync calls plain functions in threads: "
        "make it `def`, or use rota.client"
    )


def _unwrapped(function: object) -> object:
    while isinstance(function, partial):
        function = function.func
    return function


def _code_of(function: object) -> Any:
    """Return the function that runs when this is called: a method's own, or that of a callable object's class."""
    function = _unwrapped(function)
    if not (inspect.isroutine(function) or isinstance(function, type)):
        function = type(function).__call__ if callable(function) else function
    return getattr(function, "__func__", function)


_HEALTHY_MS = WORK_RETRY_CAP_MS
"""After this time of running, work has recovered, and its next failure counts as the first."""


class WorkRetry:
    """The consecutive failures of one work, and the time of its next attempt."""

    def __init__(self, jitter: Callable[[], float], now_ms: Callable[[], int]) -> None:
        self._jitter = jitter
        self._now_ms = now_ms
        self._backoff = Backoff(WORK_RETRY_FIRST_MS, WORK_RETRY_CAP_MS)
        self._failure: BaseException | None = None
        self._began_at_ms: int | None = None
        self._due_at_ms = 0

    @property
    def failures(self) -> int:
        """The number of consecutive failures."""
        return self._backoff.failures

    @property
    def failure(self) -> BaseException | None:
        """The last exception; None before the first, and after the work has run well for half a minute."""
        began_at_ms = self._began_at_ms
        is_well = began_at_ms is not None and self._now_ms() >= began_at_ms + _HEALTHY_MS
        return None if is_well else self._failure

    @property
    def pause_s(self) -> float:
        """The time until the next try."""
        return max(0, self._due_at_ms - self._now_ms()) / 1000

    def begin(self) -> None:
        """Note that the work starts."""
        self._began_at_ms = self._now_ms()

    def fail(self, error: BaseException) -> None:
        """Note that the work raised."""
        if self.failure is None:
            self._backoff.reset()
        self._failure, self._began_at_ms = error, None
        self._due_at_ms = self._now_ms() + self._backoff.next_ms(0.5 + self._jitter() / 2)
