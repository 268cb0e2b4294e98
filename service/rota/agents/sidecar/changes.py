"""The changes in order, for listeners; returning listeners can request missed ones."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from rota.agents.sidecar.status import Status

_REMEMBERED = 256


@dataclass(frozen=True, slots=True)
class Change:
    """One change. `kind` is elected, generation, following, assigned, revoked, lost, unknown or draining.

    `at_ms` is since 1970. `number` counts from 1 since the start of this sidecar, which `boot` identifies.
    """

    boot: str
    number: int
    kind: str
    at_ms: int
    status: Status

    @property
    def event_id(self) -> str:
        return f"{self.boot}-{self.number}"

    def document(self) -> dict[str, Any]:
        return {"id": self.event_id, "change": self.kind, "at_ms": self.at_ms, **self.status.document()}


class Changes:
    """Publishes changes to all listeners. Changes are few, so listeners never wait."""

    def __init__(self, boot: str) -> None:
        self._boot = boot
        self._remembered: deque[Change] = deque(maxlen=_REMEMBERED)
        self._queues: list[asyncio.Queue[Change | None]] = []
        self._number = 0
        self._is_over = False

    @property
    def last(self) -> Change | None:
        return self._remembered[-1] if self._remembered else None

    def publish(self, kind: str, status: Status, at_ms: int) -> Change:
        """Publish a change."""
        self._number += 1
        change = Change(self._boot, self._number, kind, at_ms, status)
        self._remembered.append(change)
        for queue in self._queues:
            queue.put_nowait(change)
        return change

    def end(self) -> None:
        """End all listeners."""
        self._is_over = True
        for queue in self._queues:
            queue.put_nowait(None)

    async def listen(self, last_event_id: str = "") -> AsyncGenerator[Change, None]:
        """Yield the changes missed since that event, as far as they are kept, or else the last one; then
        all new ones.
        """
        queue: asyncio.Queue[Change | None] = asyncio.Queue()
        for missed in self._missed(last_event_id):
            queue.put_nowait(missed)
        if self._is_over:
            queue.put_nowait(None)
        self._queues.append(queue)
        try:
            while (change := await queue.get()) is not None:
                yield change
        finally:
            self._queues.remove(queue)

    def _missed(self, last_event_id: str) -> list[Change]:
        boot, _, number = last_event_id.rpartition("-")
        if boot == self._boot and number.isdigit():
            return [change for change in self._remembered if change.number > int(number)]
        return [] if self.last is None else [self.last]
