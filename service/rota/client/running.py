"""The life cycle of all objects with an `async with` block: `start`, `close`, `run` and `stop`."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import Any, Self

from rota.client.options import STOP_DRAIN_S, check_seconds
from rota.client.signals import StopRequests, stopped_by_signals
from rota.client.tasks import Contained, contained, first_of

_log = logging.getLogger(__name__)

_TURNS = 5
"""Number of event loop turns: as many as `start` in a new task needs to enter, and some more."""


class Running(ABC):
    """A membership and objects built on it: an `async with` block, or `start` and `close` without one."""

    def __init__(self) -> None:
        self._stops = StopRequests()
        self._is_running = False
        self._own_block: asyncio.Task[Contained[None]] | None = None
        self._close_asked: asyncio.Event = asyncio.Event()

    # --- implemented by each kind -------------------------------------------------------------

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    @abstractmethod
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether the block was entered, and has not been closed."""

    @property
    @abstractmethod
    def _is_new(self) -> bool:
        """Whether it was neither entered nor closed."""

    @abstractmethod
    async def _close(self, drain_s: float) -> None:
        """Stop work in order and leave, inside of the block; return when that is done."""

    @abstractmethod
    def _close_now(self) -> None:
        """Interrupt a running `_close`: cancel the work, and leave."""

    @abstractmethod
    def _is_inside(self) -> bool:
        """Whether the caller is a callback that `_close` waits for."""

    @abstractmethod
    async def _until_over(self) -> None:
        """Return when the membership is over."""

    @abstractmethod
    def _failure_at_end(self) -> BaseException | None:
        """The error with which the membership ended, if any."""

    # --- checks of the life cycle -------------------------------------------------------------

    @property
    def _name_of_kind(self) -> str:
        return type(self).__name__

    def _check_new(self) -> None:
        """Raise RuntimeError if this is open or was closed."""
        if self.is_open:
            raise RuntimeError(f"this {self._name_of_kind} is open already")
        if not self._is_new:
            raise RuntimeError(f"this {self._name_of_kind} was closed: ask the client for another one")

    def _check_entered(self) -> None:
        """Raise RuntimeError if this was not entered: the caller would wait forever."""
        if self._is_new:
            raise RuntimeError(
                f"this {self._name_of_kind} is not open yet: enter its block (`async with`) or await start() first; "
                "run() does so by itself"
            )

    async def _until_entered(self) -> None:
        """Check as `_check_entered` does, after newly created tasks of the program, such as one for `run`, have
        started.
        """
        for _ in range(_TURNS):
            if not self._is_new:
                return
            await asyncio.sleep(0)
        self._check_entered()

    # --- without a block ----------------------------------------------------------------------

    async def start(self) -> None:
        """Enter, as a block does; `close` is the counterpart and raises an error that has ended it meanwhile."""
        if self._own_block is not None and not self._own_block.done():
            raise RuntimeError(f"this {self._name_of_kind} is open already")
        self._check_new()
        entered = asyncio.Event()
        block = self._own_block = asyncio.create_task(contained(self._hold_block(entered)))
        try:
            await first_of(block, entered)
        except asyncio.CancelledError:
            # The block must not outlive its caller: it would join, or be granted a permit.
            self._own_block = None
            await _cancelled(block)
            raise
        if block.done():
            block.result().result()

    async def close(self, timeout: float = STOP_DRAIN_S) -> None:
        """Stop work in order, commit and leave; may be called inside of an `async with` block.

        After `timeout` seconds work is cancelled, `on_lost` is called if a callback has not returned, and the group is
        left. This returns at most 2.5 s later, in every state of the coordinator and of the work; in a callback or in
        work of a pool it returns at once.
        """
        self._close_asked.set()
        closing = asyncio.ensure_future(self._close(timeout))
        if self._is_inside():
            _keep(closing)
            return
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            self._close_now()
            _keep(closing)
            raise
        if self._own_block is not None:
            (await self._own_block).result()

    async def _hold_block(self, entered: asyncio.Event) -> None:
        async with self:
            entered.set()
            over = asyncio.ensure_future(self._until_over())  # Another caller closed it: its client may be closed.
            try:
                await first_of(over, self._close_asked)
            finally:
                _end(over)

    # --- run ----------------------------------------------------------------------------------

    def stop(self) -> None:
        """End `run` as the first SIGTERM does; a second call acts as a second signal. Any thread and signal handler may
        call it.
        """
        self._stops.add()

    @contextmanager
    def _only_run(self, drain_timeout: float) -> Iterator[None]:
        """Mark that `run` is running, and reject a closed object: its run would return silently."""
        check_seconds("drain_timeout", drain_timeout)
        if self._is_running:
            raise RuntimeError(f"run() of this {self._name_of_kind} is under way already")
        if not self.is_open and self._failure_at_end() is None:
            self._check_new()
        self._is_running = True
        try:
            yield
        finally:
            self._is_running = False

    def _own_block_for_run(self) -> AbstractAsyncContextManager[Any]:
        """This object as a block, if `run` is called outside of it."""
        return self if self._is_new else nullcontext()

    async def _run_until_stopped(self, handle_signals: bool, drain_s: float) -> None:
        """Return after a stop, or when the membership has ended. Signals are handled while this runs."""
        self._stops.bind(asyncio.get_running_loop())
        with stopped_by_signals(self._stops, enabled=handle_signals):
            over = asyncio.ensure_future(self._until_over())
            try:
                await first_of(over, self._stops.in_order)
                if not over.done():
                    await self._stop_in_order(drain_s)
                elif (failure := self._failure_at_end()) is not None:
                    raise failure
            finally:
                _end(over)

    async def _stop_in_order(self, drain_s: float) -> None:
        """Close in order, or at once after a second request."""
        _log.info("stopping in order%s", "; a second signal stops at once" if self._stops.by_signal else "")
        closing = asyncio.ensure_future(self.close(drain_s))
        _keep(closing)
        await first_of(closing, self._stops.at_once)
        if not closing.done():
            self._close_now()
        await closing


class RunningOver(Running):
    """An object built on another one with the membership: an election on its member, a pool on its consumer."""

    def __init__(self, base: Running) -> None:
        super().__init__()
        self._base = base

    @property
    def is_open(self) -> bool:
        """Whether the block was entered, and is not being closed."""
        return self._base.is_open

    @property
    def _is_new(self) -> bool:
        return self._base._is_new

    async def _close(self, drain_s: float) -> None:
        try:
            await self._base._close(drain_s)
        finally:
            self._closed()

    def _closed(self) -> None:
        """Called after the membership was closed."""

    def _close_now(self) -> None:
        self._base._close_now()

    def _is_inside(self) -> bool:
        return self._base._is_inside()

    async def _until_over(self) -> None:
        await self._base._until_over()

    def _failure_at_end(self) -> BaseException | None:
        return self._base._failure_at_end()


async def _cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait for its end; each cancellation of the caller cancels it once more."""
    task.cancel()
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            task.cancel()


_kept: set[asyncio.Future[Any]] = set()


def _keep(task: asyncio.Future[Any]) -> None:
    """Keep a reference to a task that may outlive its block by ignoring its cancellation."""
    _kept.add(task)
    task.add_done_callback(_kept.discard)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())


def _end(task: asyncio.Future[None]) -> None:
    """Cancel a task without a waiting caller."""
    task.cancel()
    _keep(task)
