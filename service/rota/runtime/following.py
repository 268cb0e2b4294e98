"""The journal lines of a group, whichever replica owns its shard, for listeners that can miss some."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Protocol

from rota.protocol.errors import LinesPruned
from rota.replica.ports import JournalEvent, StoreUnavailable
from rota.runtime.subscriptions import Listener

logger = logging.getLogger(__name__)

LOOK_AGAIN_S = 0.25
"""While a shard moves. A member on a stream gets the same with its next heartbeat."""


class Followed(Protocol):
    """What it takes of the coordinator."""

    def subscribe_here(self, namespace: str, group_id: str, listener: Listener) -> Callable[[], None]: ...

    def is_here(self, namespace: str, group_id: str) -> bool: ...

    async def until_moved(self, namespace: str, group_id: str) -> None: ...

    def watch(self, namespace: str, group_id: str, after_revision: int | None) -> AsyncIterator[JournalEvent]: ...


class Follower:
    """Follows one group: on the spot while its shard is here, over the owner's watch while it is not.

    Lines come in order and at most once. Some may be missing around a move, unless the owner's watch brings them; those
    that are pruned by then are logged and skipped: members get the same with their next heartbeats.
    """

    def __init__(self, coordinator: Followed, namespace: str, group_id: str, listener: Listener) -> None:
        self._coordinator = coordinator
        self._group = (namespace, group_id)
        self._listener = listener
        self._last: int | None = None
        # Begun at once, not when the task first runs: what happens from this moment on is told.
        self._end = coordinator.subscribe_here(*self._group, self._tell)
        self._task = asyncio.create_task(self._run())

    def end(self) -> asyncio.Task[None]:
        """Tell nothing more. The task that is returned ends soon, and is the caller's to await."""
        self._end()
        self._task.cancel()
        return self._task

    async def _run(self) -> None:
        while True:
            if self._coordinator.is_here(*self._group):
                await self._coordinator.until_moved(*self._group)
            else:
                await self._follow()
            await asyncio.sleep(LOOK_AGAIN_S)

    async def _follow(self) -> None:
        try:
            async with aclosing(self._coordinator.watch(*self._group, self._last)) as events:  # type: ignore[type-var]
                async for event in events:
                    self._tell(event)
        except StoreUnavailable:
            return
        except LinesPruned as pruned:
            logger.warning("a follower of a group goes on behind pruned lines", extra={"first": pruned.first_revision})
            self._last = pruned.first_revision - 1

    def _tell(self, event: JournalEvent) -> None:
        if self._last is None or event.seq > self._last:
            self._last = event.seq
            self._listener(event)
