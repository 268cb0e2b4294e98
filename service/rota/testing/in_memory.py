"""A coordinator in this process, for tests of what its clients do: see `rota.testing`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Self

from rota.client import Client, CoordinatorUnreachable
from rota.client.errors import error_in
from rota.client.transports.causes import cannot_connect, no_answer, unexpected
from rota.client.transports.port import Answer, GroupEvent
from rota.protocol.calls import refuse
from rota.protocol.errors import RejectedRequest
from rota.protocol.messages import Request
from rota.protocol.wire.problems import Problem
from rota.protocol.wire.replies import Received
from rota.server.runtime.coordinator import LocalCoordinator
from rota.testing.memory import MemoryStore
from rota.testing.virtual_time import LoopClock

_HERE = "the coordinator in this process"


class InMemoryTransport:
    """Calls the coordinator directly. Closing it leaves the coordinator alone, which is its owner's."""

    def __init__(self, coordinator: LocalCoordinator | None) -> None:
        self.coordinator = coordinator
        """None while the coordinator is stopped."""
        self.connected = asyncio.Event()
        """While it is not set, requests and answers are under way, until their calls time out."""
        self.connected.set()

    async def send(self, request: Request, *, timeout_ms: int) -> Answer:
        """As `Transport.send`."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self.connected.wait()
                if self.coordinator is None:
                    raise cannot_connect(_HERE, "it is stopped")
                decided = await self.coordinator.call(request)
                await self.connected.wait()
        except TimeoutError as error:
            raise no_answer(_HERE, timeout_ms) from error
        except RejectedRequest as rejected:
            return Received(refuse(request, rejected.code, rejected.detail))
        except CoordinatorUnreachable:
            raise
        except Exception as error:
            raise unexpected(_HERE, error) from error
        return Received(decided.reply, decided.revision, decided.epoch)

    async def watch(self, namespace: str, group_id: str, after_revision: int | None) -> AsyncIterator[GroupEvent]:
        """As `Transport.watch`."""
        if self.coordinator is None:
            raise cannot_connect(_HERE, "it is stopped")
        try:
            async for line in self.coordinator.watch(namespace, group_id, after_revision):
                await self.connected.wait()
                yield GroupEvent(line.seq, line.at_ms / 1000, line.generation_id, line.kind, line.reason, line.payload)
        except RejectedRequest as rejected:
            problem = Problem(rejected.code, rejected.detail, **rejected.facts)
            raise error_in(problem) from rejected

    async def close(self) -> None:
        """Do nothing: this transport has no connection."""


class Coordinator:
    """A coordinator in memory, for the time of an `async with` block, which closes its clients, too.

    It decides as a server with default limits does. Permissions, quotas and signed tokens are not part of it.
    """

    def __init__(self) -> None:
        self._store = MemoryStore(LoopClock().monotonic_ms)
        self._transports: dict[Client, InMemoryTransport] = {}
        self._serving: LocalCoordinator | None = None

    async def __aenter__(self) -> Self:
        await self._store.open(1)
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            for client in self._transports:
                await client.close()
        finally:
            await self.stop()

    def connect(
        self, namespace: str = "default", *, client_id: str | None = None, retry_refusals: bool = True
    ) -> Client:
        """A client of this coordinator; the arguments are those of `rota.connect`."""
        transport = InMemoryTransport(self._serving)
        client = Client(transport, namespace, client_id=client_id, retry_refusals=retry_refusals)
        self._transports[client] = transport
        return client

    async def start(self) -> None:
        """Serve again after `stop`, with the groups, offsets and topics of before."""
        if self._serving is None:
            serving = LocalCoordinator(self._store, shard_count=1, clock=LoopClock())
            await serving.start()
            await serving.wait_until_ready()
            self._serve_by(serving)

    async def stop(self) -> None:
        """Stop as a server does at SIGTERM: from now on clients cannot connect. Members hold their shares until
        `valid_until`.
        """
        if self._serving is not None:
            serving = self._serving
            self._serve_by(None)
            await serving.stop()

    def disconnect(self, client: Client) -> None:
        """Cut the client's network: what it sends, and what it is sent, does not arrive before `reconnect`.

        The members of a client that stays disconnected expire, as those of a process that was killed.
        """
        self._transports[client].connected.clear()

    def reconnect(self, client: Client) -> None:
        """Repair the client's network. Calls that have not timed out go on."""
        self._transports[client].connected.set()

    def _serve_by(self, serving: LocalCoordinator | None) -> None:
        self._serving = serving
        for transport in self._transports.values():
            transport.coordinator = serving
