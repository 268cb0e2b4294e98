"""A way of the SDK to a coordinator in the same process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Protocol

from rota.client.errors import error_in
from rota.client.transports.causes import no_answer, unexpected
from rota.client.transports.port import Answer, GroupEvent
from rota.protocol.errors import RejectedRequest
from rota.protocol.messages import Reply, Request, refuse
from rota.wire.problems import Problem
from rota.wire.replies import Received

_HERE = "the coordinator in this process"


class Decision(Protocol):
    """What a coordinator answers."""

    @property
    def reply(self) -> Reply: ...

    @property
    def revision(self) -> int: ...

    @property
    def epoch(self) -> int: ...


class Coordinator(Protocol):
    """The interface that it needs; the server's `LocalCoordinator` has it, without an import in the SDK."""

    async def call(self, request: Request) -> Decision: ...

    def watch(self, namespace: str, group_id: str, after: int | None = None) -> AsyncIterator[Any]: ...


class InMemoryTransport:
    """Calls the coordinator directly. Closing it leaves the coordinator alone, which is its owner's."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    async def send(self, request: Request, *, timeout_ms: int) -> Answer:
        """As `Transport.send`."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                decided = await self._coordinator.call(request)
        except TimeoutError as error:
            raise no_answer(_HERE, timeout_ms) from error
        except RejectedRequest as rejected:
            return Received(refuse(request, rejected.code, rejected.detail))
        except Exception as error:
            raise unexpected(_HERE, error) from error
        return Received(decided.reply, decided.revision, decided.epoch)

    async def watch(self, namespace: str, group_id: str, after_revision: int | None) -> AsyncIterator[GroupEvent]:
        """As `Transport.watch`."""
        try:
            async for line in self._coordinator.watch(namespace, group_id, after_revision):
                yield GroupEvent(line.seq, line.at_ms, line.generation_id, line.kind, line.reason, line.payload)
        except RejectedRequest as rejected:
            problem = Problem(
                rejected.code,
                rejected.detail,
                first_revision=rejected.first_revision,
                last_revision=rejected.last_revision,
                incarnation=rejected.incarnation,
            )
            raise error_in(problem) from rejected

    async def close(self) -> None:
        """Nothing to close."""
