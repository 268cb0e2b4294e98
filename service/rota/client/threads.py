"""An event loop in a separate thread, and calls to it from other threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from rota.client.tasks import contained

Outcome = TypeVar("Outcome")

_GRACE_S = 1.0
"""Time for calls of other threads to end when the loop is stopped."""


class LoopThread:
    """Runs until `stop`, which cancels the remaining tasks and waits for their end."""

    def __init__(self, name: str) -> None:
        self._started = threading.Event()
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._process_id = os.getpid()
        self._is_stopping = False
        self._is_over = False
        self._failure: BaseException | None = None
        self._pending: dict[concurrent.futures.Future[Any], Coroutine[Any, Any, Any]] = {}

    def start(self) -> None:
        """Return once the loop runs; raise an error that prevents it, such as too many open files."""
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure

    @property
    def is_current(self) -> bool:
        """Whether the caller is this thread: it must not wait for itself."""
        return threading.current_thread() is self._thread

    @property
    def is_over(self) -> bool:
        """Whether the loop has ended."""
        return self._is_over

    @property
    def was_forked(self) -> bool:
        """Whether this is a forked child of the thread's process: the thread does not run in it."""
        return os.getpid() != self._process_id

    def submit(self, coroutine: Coroutine[Any, Any, Outcome]) -> concurrent.futures.Future[Outcome]:
        """Run `coroutine` on the loop.

        Raises:
            RuntimeError: The thread was stopped, for example by closing the client; or this is a forked child, which
                has no such thread and would wait forever.
        """
        assert self._loop is not None
        try:
            self._check_running()
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError as error:
            coroutine.close()
            raise error if self.was_forked else RuntimeError("this client is closed") from error
        self._pending[future] = coroutine
        future.add_done_callback(lambda done: self._pending.pop(done, None))
        if self._is_over:
            _give_up(future, coroutine)
        return future

    def _check_running(self) -> None:
        if self.was_forked:
            raise RuntimeError(
                f"this client belongs to process {self._process_id}, and this is its forked child {os.getpid()}: "
                "connect anew in the child, or start processes by spawn"
            )
        if self._is_over:
            raise RuntimeError("this client is closed")

    def run(self, coroutine: Coroutine[Any, Any, Outcome]) -> Outcome:
        """Run `coroutine` on the loop and wait for it. An interrupted wait cancels it."""
        if self.is_current:
            coroutine.close()
            raise RuntimeError("a callback on the loop's own thread must not wait for the loop")
        try:
            future = self.submit(contained(coroutine))
        except RuntimeError:
            coroutine.close()
            raise
        try:
            ended = future.result()
        except concurrent.futures.CancelledError:
            _close_unbegun(coroutine)
            if not self._is_stopping:
                raise
            raise RuntimeError("this client was closed while a call of another thread was under way") from None
        except BaseException:
            future.cancel()
            _close_unbegun(coroutine)
            raise
        return ended.result()

    def stop(self) -> None:
        if self.was_forked:
            return
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.get_loop()
                runner.run(self._serve())
        except BaseException as error:
            if self._started.is_set():
                raise
            self._failure = error
        finally:
            self._is_over = True
            self._started.set()
            for future, coroutine in tuple(self._pending.items()):
                _give_up(future, coroutine)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._started.set()
        await self._stop.wait()
        await self._finish_calls()

    async def _finish_calls(self) -> None:
        """Let calls of other threads end: closed objects end them within a moment."""
        if calls := [asyncio.wrap_future(future) for future in tuple(self._pending)]:
            await asyncio.wait(calls, timeout=_GRACE_S)
        self._is_stopping = True


def _give_up(future: concurrent.futures.Future[Any], coroutine: Coroutine[Any, Any, Any]) -> None:
    """Cancel a call that was submitted too late to start, because its caller would wait forever."""
    future.cancel()
    _close_unbegun(coroutine)


def _close_unbegun(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Close a coroutine that will never run."""
    if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
        coroutine.close()
