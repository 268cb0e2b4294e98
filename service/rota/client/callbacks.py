"""The user's functions, plain or async, and the order in which they are called."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

Outcome = TypeVar("Outcome")
Share = TypeVar("Share")

Listener: TypeAlias = "Callable[..., Awaitable[None] | None]"
"""Called when a share changes; plain or async. One that has a parameter `deadline` is told by when it must be done,
in seconds of the event loop's clock."""


@dataclass(frozen=True, slots=True)
class Listeners(Generic[Share]):
    """Where a member's work starts and stops.

    `on_assigned(added, all)` starts work and returns. `on_revoked(removed)` stops it and commits, and is waited for:
    the group goes on without this member's answer only at the deadline. `on_lost(removed)` is called instead where
    that is over already: it stops work at once, without a commit, and interrupts the other two.
    """

    on_assigned: Listener | None = None
    on_revoked: Listener | None = None
    on_lost: Listener | None = None


async def notify(listener: Listener | None, *shares: Any, deadline: float | None) -> None:
    """Call a listener, if there is one, and wait for it."""
    if listener is None:
        return
    if _wants_deadline(listener):
        await call(listener, *shares, deadline=deadline)
    else:
        await call(listener, *shares)


def _wants_deadline(listener: Listener) -> bool:
    try:
        return "deadline" in inspect.signature(listener).parameters
    except (TypeError, ValueError):  # Written in C, without a signature.
        return False


async def call(function: Callable[..., Outcome | Awaitable[Outcome]], *arguments: Any, **named: Any) -> Outcome:
    """Call a function that may be async."""
    outcome = function(*arguments, **named)
    if inspect.isawaitable(outcome):
        awaited: Outcome = await outcome
        return awaited
    return outcome


class CallbackQueue:
    """Runs callbacks one after the other, beside the member's own tasks.

    An exception of one goes to `on_error`; it does not end the tasks beside it, so that the member can leave in order.
    """

    def __init__(self, tasks: asyncio.TaskGroup, on_error: Callable[[Exception], None]) -> None:
        self._tasks = tasks
        self._on_error = on_error
        self._last: asyncio.Task[None] | None = None
        self._unfinished: set[asyncio.Task[None]] = set()

    def add(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Run `callback` when all that were added before it are over."""
        self._start(self._last, callback)

    def interrupt(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Cancel what runs and what waits, and run `callback` now: it does not wait for those to heed it."""
        for task in self._unfinished:
            task.cancel()
        self._start(None, callback)

    async def drain(self, timeout_s: float | None = None) -> None:
        """Return when no callback runs or waits, or after `timeout_s`."""
        while self._unfinished:
            done, _ = await asyncio.wait(self._unfinished, timeout=timeout_s)
            if not done:
                return

    def _start(self, former: asyncio.Task[None] | None, callback: Callable[[], Awaitable[None]]) -> None:
        task = self._last = self._tasks.create_task(self._run(former, callback))
        self._unfinished.add(task)
        task.add_done_callback(self._unfinished.discard)

    async def _run(self, former: asyncio.Task[None] | None, callback: Callable[[], Awaitable[None]]) -> None:
        if former is not None:
            await asyncio.wait((former,))
        try:
            await callback()
        except Exception as error:
            self._on_error(error)
