"""Connections at the port that workers share go to the worker that owns the group of their calls (ADR 96)."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from pathlib import Path

from rota.api.http.named_group import named_group
from rota.api.peer.descriptors import GivingLink, TakingSocket
from rota.observability.metrics import Metrics
from rota.replica.forwarding import Forwarding
from rota.server.connections import Connections
from rota.server.http_protocol import GuardedHttpProtocol

_log = logging.getLogger(__name__)


class HandingOver:
    """One worker's part: it hands connections over to the workers beside it, and takes those that are handed to it."""

    def __init__(
        self, forwarding: Forwarding, metrics: Metrics, folder: Path, peer_address: str, shared_port: int
    ) -> None:
        """`folder` has the sockets of all workers of a supervisor, each under its address for peers; `peer_address` is
        this one's. Connections are handed over that were accepted at `shared_port`.
        """
        self.shared_port = shared_port
        self._forwarding = forwarding
        self._metrics = metrics
        self._folder = folder
        self._path = _socket_of(folder, peer_address)
        self._links: dict[str, GivingLink] = {}

    def give(self, connection: socket.socket, received: bytes) -> bool:
        """Whether a connection has gone to the owner of the group that its received bytes name."""
        group = named_group(received)
        owner = self._forwarding.taker(*group) if group is not None else None
        if owner is None or not owner.peer_address:
            return False
        link = self._links.get(owner.peer_address)
        if link is None:
            self._close_lost()
            link = self._links[owner.peer_address] = GivingLink(_socket_of(self._folder, owner.peer_address))
        if not link.give(connection.fileno(), received):
            return False
        self._metrics.connection_handed_over()
        return True

    def listen(
        self, connections: Connections, create_protocol: Callable[[], GuardedHttpProtocol]
    ) -> TakenConnections | None:
        """Take connections from now on; None where there cannot be a socket for them."""
        taken = TakenConnections(self._path, connections, create_protocol)
        try:
            taken.start()
        except OSError as error:
            _log.warning("no socket for connections of the workers beside this one", extra={"error": str(error)})
            return None
        return taken

    def close(self) -> None:
        for link in self._links.values():
            link.close()

    def _close_lost(self) -> None:
        """Close the links to workers that are gone. The next ones have other addresses."""
        for address, link in list(self._links.items()):
            if not link.has_taker():
                del self._links[address]
                link.close()


class TakenConnections:
    """Serves the connections that the workers beside this one hand over. Stands where uvicorn expects a server."""

    def __init__(
        self, path: Path, connections: Connections, create_protocol: Callable[[], GuardedHttpProtocol]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._create_protocol = create_protocol
        self._opening: set[asyncio.Task[None]] = set()
        self._socket = TakingSocket(path, self._take, lambda: connections.has_room_for_others)

    def start(self) -> None:
        """Raises `OSError`."""
        self._socket.start()

    def close(self) -> None:
        self._socket.close()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._opening, return_exceptions=True)

    def _take(self, connection: socket.socket, received: bytes) -> None:
        task = self._loop.create_task(self._open(connection, received))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket, received: bytes) -> None:
        protocol = self._create_protocol()
        protocol.received_before = received
        try:
            await self._loop.connect_accepted_socket(lambda: protocol, connection)
        except OSError as error:  # the client has gone
            connection.close()
            _log.debug("a connection that was handed over has ended", extra={"error": str(error)})


def _socket_of(folder: Path, peer_address: str) -> Path:
    """A short name: the whole path may take 107 bytes."""
    return folder / f"{peer_address}.fd"
