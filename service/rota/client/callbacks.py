"""The user's functions, plain or async, and the order in which they are called."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from rota.client.errors import losses_are_expected
from rota.client.stop_deadline import Step, StopDeadline
from rota.client.user_functions import own_cancellations_are_errors

Outcome = TypeVar("Outcome")
Share = TypeVar("Share")

Listener: TypeAlias = "Callable[..., Awaitable[None] | None]"
"""A plain or async function that is called when a share changes. A parameter `deadline` is the time by which it must
return, in seconds of the event loop's clock.
"""


@dataclass(frozen=True, slots=True)
class Listeners(Generic[Share]):
    """Callbacks that start and stop a member's work.

    `on_assigned(added, all)` starts work and returns. `on_revoked(removed)` stops it and commits, and is awaited: the
    group continues without this member only at the deadline. `on_lost(removed)` is called instead if the share is
    already lost: it stops work at once, without a commit, and interrupts the other two. Without an `on_lost`,
    `on_revoked` is called in its place, as by Kafka's consumers; a commit that it tries raises `MembershipLost`.
    """

    on_assigned: Listener | None = None
    on_revoked: Listener | None = None
    on_lost: Listener | None = None


async def notify_lost(listeners: Listeners[Any], share: Any, unnotified: Any, *, deadline: float | None) -> None:
    """Call `on_lost`, or else `on_revoked` with the part that is `unnotified`: the program must be notified once that
    its share is over.
    """
    if listeners.on_lost is not None:
        with losses_are_expected("on_lost"):
            await notify(listeners.on_lost, share, deadline=deadline)
    elif unnotified is not None:
        await notify_revoked(listeners, unnotified, deadline=deadline)


async def notify_revoked(listeners: Listeners[Any], share: Any, *, deadline: float | None) -> None:
    """Call `on_revoked`. The last commit that it tries may be rejected, because the group is in a later generation."""
    with losses_are_expected("on_revoked"):
        await notify(listeners.on_revoked, share, deadline=deadline)


async def notify(listener: Listener | None, *shares: Any, deadline: float | None) -> None:
    """Call a listener, if there is one, and wait for it."""
    if listener is None:
        return
    if wants_deadline(listener):
        await call(listener, *shares, deadline=deadline)
    else:
        await call(listener, *shares)


def wants_deadline(listener: Listener) -> bool:
    """Return whether a function has a parameter `deadline`."""
    try:
        return "deadline" in inspect.signature(listener).parameters
    except (TypeError, ValueError):  # Functions written in C have no signature.
        return False


async def call(function: Callable[..., Outcome | Awaitable[Outcome]], *arguments: Any, **named: Any) -> Outcome:
    """Call a function that may be async. Its own CancelledError becomes a RuntimeError: see `user_functions`."""
    with own_cancellations_are_errors(function):
        outcome = function(*arguments, **named)
        if inspect.isawaitable(outcome):
            awaited: Outcome = await outcome
            return awaited
        return outcome


_INSIDE: ContextVar[frozenset[int]] = ContextVar("rota_inside", default=frozenset())
"""The queues whose callbacks are, or have started, the current code."""


@contextmanager
def inside(*keys: int) -> Iterator[None]:
    """Mark the code in this block, and the tasks and threads that it starts, as a callback of these queues."""
    token = _INSIDE.set(_INSIDE.get() | frozenset(keys))
    try:
        yield
    finally:
        _INSIDE.reset(token)


def is_inside(key: int) -> bool:
    """Return whether the current code is a callback of the queue `key` and so must not wait for it to be idle."""
    return key in _INSIDE.get()


def current_queues() -> frozenset[int]:
    """Return the queues of which the current code is a callback."""
    return _INSIDE.get()


_ON_RETURN: ContextVar[Callable[[], None] | None] = ContextVar("rota_on_return", default=None)
"""Called when the user's current function has returned, in the thread of that function."""


@contextmanager
def on_return(function: Callable[[], None]) -> Iterator[None]:
    """Call `function` in the thread of a user's function, as soon as that has returned.

    The event loop notices the return later, and may lose the share in between.
    """
    token = _ON_RETURN.set(function)
    try:
        yield
    finally:
        _ON_RETURN.reset(token)


@contextmanager
def in_own_thread() -> Iterator[None]:
    """Call the function of `on_return` at the end of this block, in which a user's function runs in its own thread."""
    function = _ON_RETURN.get()
    _ON_RETURN.set(None)  # Threads and tasks that the user's function starts do not inherit it.
    yield
    if function is not None:
        function()


class CallbackQueue:
    """Runs callbacks one after the other, concurrently with the member's own tasks.

    An exception of a callback goes to `on_error`; it does not end the other tasks, so that the member can leave in
    order.
    """

    def __init__(self, key: int, on_error: Callable[[BaseException], None]) -> None:
        """`key` marks the callbacks, for `is_inside`."""
        self._key = key
        self._on_error = on_error
        self._last: asyncio.Task[None] | None = None
        self._unfinished: set[asyncio.Task[None]] = set()
        self._final_callbacks: list[asyncio.Task[None]] = []
        """Callbacks that `interrupt` has started, in order. They are never interrupted."""
        self._interrupted: set[asyncio.Task[None]] = set()
        """Cancelled callbacks that have not ended yet: one in a thread continues until it returns."""

    def add(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Run `callback` when all earlier callbacks have ended."""
        self._start(self._last, callback)

    def interrupt(self, callback: Callable[[], Awaitable[None]] | None = None) -> None:
        """Cancel all running and queued callbacks, and run `callback` now, without waiting for them to end.

        A callback that interrupted others before is not cancelled: this one waits for it.
        """
        self._final_callbacks = [task for task in self._final_callbacks if task in self._unfinished]
        for task in self._unfinished.difference(self._final_callbacks):
            task.cancel()
            self._interrupted.add(task)
            task.add_done_callback(self._interrupted.discard)
        # The next callback waits for these, but not for a cancelled one.
        self._last = self._final_callbacks[-1] if self._final_callbacks else None
        if callback is not None:
            self._final_callbacks.append(self._start(self._last, callback))

    async def until_interrupted_end(self) -> None:
        """Return when all callbacks that were interrupted before this call have ended."""
        if interrupted := tuple(self._interrupted):
            await asyncio.wait(interrupted)

    def cancel(self) -> None:
        """Cancel all callbacks when the member has ended."""
        for task in self._unfinished:
            task.cancel()

    @property
    def is_idle(self) -> bool:
        return not self._unfinished

    async def drain(self, deadline: StopDeadline, step: Step) -> bool:
        """Return True when no callback runs or waits, or False at the deadline of this step of a stop."""
        return await deadline.wait(self._unfinished, step)

    def _start(self, former: asyncio.Task[None] | None, callback: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        task = self._last = asyncio.create_task(self._run(former, callback))
        self._unfinished.add(task)
        task.add_done_callback(self._unfinished.discard)
        return task

    async def _run(self, former: asyncio.Task[None] | None, callback: Callable[[], Awaitable[None]]) -> None:
        if former is not None:
            await asyncio.wait((former,))
        try:
            with inside(self._key):
                await callback()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._on_error(error)
