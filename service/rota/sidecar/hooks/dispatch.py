"""Delivers changes to one hook: in order, repeated until it succeeds, and never an old one after a new one."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Protocol

from rota.membership.backoff import Backoff
from rota.protocol.defaults import BACKOFF_FIRST_MS, HOOK_RETRY_CAP_MS
from rota.sidecar.news import Change

_log = logging.getLogger(__name__)


class HookFailed(Exception):
    """It did not work; `again` is whether it may work later."""

    def __init__(self, reason: str, *, again: bool = True) -> None:
        super().__init__(reason)
        self.again = again


class Hook(Protocol):
    """One way to tell of a change."""

    @property
    def name(self) -> str: ...

    async def deliver(self, change: Change) -> None:
        """Tell of a change; raises `HookFailed`."""


class Dispatcher:
    """One hook's queue. Every change carries the whole status, so that an older one is skipped where a newer waits."""

    def __init__(self, hook: Hook, jitter: Callable[[], float] = random.random) -> None:
        self._hook = hook
        self._jitter = jitter
        self._next: Change | None = None
        self._arrived = asyncio.Event()
        self._settled_number = 0
        self._settled = asyncio.Event()

    def offer(self, change: Change) -> None:
        """Deliver this one next, instead of any that still waits."""
        self._next = change
        self._arrived.set()

    async def settled(self, number: int) -> None:
        """Return once the change of that number, or a later one, was delivered or given up."""
        while self._settled_number < number:
            self._settled.clear()
            await self._settled.wait()

    async def run(self) -> None:
        """Deliver, until cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            change, self._next = self._next, None
            if change is not None:
                await self._deliver(change)

    async def _deliver(self, change: Change) -> None:
        backoff = Backoff(BACKOFF_FIRST_MS, HOOK_RETRY_CAP_MS)
        while self._next is None:
            try:
                await self._hook.deliver(change)
                break
            except Exception as error:
                # Whatever the receiver answers, the member goes on.
                failed = error if isinstance(error, HookFailed) else HookFailed(repr(error))
                _log.warning("%s: %s was not delivered: %s", self._hook.name, change.kind, failed)
                if not failed.again:
                    break
            await self._pause(backoff.next_ms(self._jitter()) / 1000)
        self._settled_number = change.number
        self._settled.set()

    async def _pause(self, seconds: float) -> None:
        """Wait before the next try, but not when there is something newer to tell."""
        try:
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
        except TimeoutError:
            return
