"""A listener that accepts TLS connections and counts them before their handshakes; asyncio counts them only after."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from rota.server.connections import Connection, Connections
from rota.server.http.connection import HttpConnection

HANDSHAKE_SECONDS = 5.0
ACCEPTED_AT_ONCE = 64
PAUSE_SECONDS = 0.1
"""Pause after a connection could not be accepted, for example without free file descriptors."""


class TlsListener:
    """A replacement for the `asyncio.Server` that uvicorn expects."""

    def __init__(
        self,
        bound: socket.socket,
        tls: ssl.SSLContext,
        connections: Connections,
        create_protocol: Callable[[], HttpConnection],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._bound = bound
        self._tls = tls
        self._connections = connections
        self._create_protocol = create_protocol
        self._opening: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._listen()

    def close(self) -> None:
        """Accept no more connections. Connections with handshakes in progress are closed."""
        self._is_closed = True
        self._loop.remove_reader(self._bound)
        for task in self._opening:
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._opening, return_exceptions=True)

    def _listen(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._bound, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, address = self._bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self._loop.remove_reader(self._bound)
                self._loop.call_later(PAUSE_SECONDS, self._listen)
                return
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            entered = self._connections.enter(str(address[0]), partial(_cut, accepted), shakes_hands=True)
            task = self._loop.create_task(self._open(accepted, entered))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, accepted: socket.socket, entered: Connection) -> None:
        protocol = self._create_protocol()
        protocol.entered = entered
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol, accepted, ssl=self._tls, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
        except (OSError, TimeoutError):  # a failure concerns only the client
            entered.left()
        except asyncio.CancelledError:
            entered.left()
            raise


def _cut(accepted: socket.socket) -> None:
    """End the connection in any state: its owner then closes it."""
    with suppress(OSError):
        accepted.shutdown(socket.SHUT_RDWR)
