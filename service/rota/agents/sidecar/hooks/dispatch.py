"""Delivery of changes to one hook: in order, retried until it succeeds, and never an old one after a new one."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Protocol

from rota.agents.sidecar.changes import Change
from rota.core.membership.backoff import Backoff
from rota.protocol.defaults import BACKOFF_FIRST_MS, HOOK_RETRY_CAP_MS

_log = logging.getLogger(__name__)


class HookFailed(Exception):
    """The delivery failed; `again` is whether a retry may succeed."""

    def __init__(self, reason: str, *, again: bool = True) -> None:
        super().__init__(reason)
        self.again = again


class Hook(Protocol):
    """A way to notify of a change."""

    @property
    def name(self) -> str: ...

    async def deliver(self, change: Change) -> None:
        """Deliver a change; raise `HookFailed` on failure."""


class Dispatcher:
    """One hook's queue. Every change has the whole status, so an older one is skipped if a newer one waits."""

    def __init__(self, hook: Hook, jitter: Callable[[], float] = random.random) -> None:
        self._hook = hook
        self._jitter = jitter
        self._next: Change | None = None
        self._arrived = asyncio.Event()
        self._settled_number = 0
        self._settled = asyncio.Event()

    def offer(self, change: Change) -> None:
        """Deliver this change next, instead of any that still waits."""
        self._next = change
        self._arrived.set()

    async def settled(self, number: int) -> None:
        """Return when the change of that number, or a later one, was delivered or abandoned."""
        while self._settled_number < number:
            self._settled.clear()
            await self._settled.wait()

    async def run(self) -> None:
        """Deliver changes until cancelled."""
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
                # No answer of a receiver ends the member.
                failed = error if isinstance(error, HookFailed) else HookFailed(repr(error))
                _log.warning("%s: %s was not delivered: %s", self._hook.name, change.kind, failed)
                if not failed.again:
                    break
            await self._pause(backoff.next_ms(self._jitter()) / 1000)
        self._settled_number = change.number
        self._settled.set()

    async def _pause(self, seconds: float) -> None:
        """Wait before the next attempt, but not if a newer change waits."""
        try:
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
        except TimeoutError:
            return
