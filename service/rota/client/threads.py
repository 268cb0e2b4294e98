"""An event loop in a thread of its own, and how others have it do something."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from rota.client.tasks import contained

Outcome = TypeVar("Outcome")


class LoopThread:
    """Runs until `stop`, which cancels what still runs on it and waits for that."""

    def __init__(self, name: str) -> None:
        self._started = threading.Event()
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._process_id = os.getpid()

    def start(self) -> None:
        self._thread.start()
        self._started.wait()

    @property
    def is_current(self) -> bool:
        """Whether the caller is this thread: it must not wait for itself."""
        return threading.current_thread() is self._thread

    @property
    def was_forked(self) -> bool:
        """Whether this is a child of the process that the thread runs in: here it does not run."""
        return os.getpid() != self._process_id

    def submit(self, coroutine: Coroutine[Any, Any, Outcome]) -> concurrent.futures.Future[Outcome]:
        """Run `coroutine` there.

        Raises:
            RuntimeError: In a forked child, which has no such thread and would wait for ever.
        """
        if self.was_forked:
            coroutine.close()
            raise RuntimeError(
                f"this client belongs to process {self._process_id}, and this is its forked child {os.getpid()}: "
                "connect anew in the child, or start processes by spawn"
            )
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, Outcome]) -> Outcome:
        """Run `coroutine` there and wait for it. An interrupted wait cancels it."""
        if self.is_current:
            coroutine.close()
            raise RuntimeError("a callback on the loop's own thread must not wait for the loop")
        future = self.submit(contained(coroutine))
        try:
            ended = future.result()
        except BaseException:
            future.cancel()
            raise
        return ended.result()

    def stop(self) -> None:
        if self.was_forked:
            return
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._started.set()
        await self._stop.wait()
