"""uvicorn inside our own event loop: this process binds, handles signals, and decides when it stops."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from rota.core.access.budgets import BUDGETS
from rota.server.connections import Connections, room
from rota.server.http.connection import WRITE_DEADLINE_SECONDS, HttpConfig, HttpConnection
from rota.server.http.member_calls import MemberCalls
from rota.server.settings import Address
from rota.server.tls_listener import TlsListener

KEEP_ALIVE_SECONDS = 75
"""Longer than the idle timeout of common proxies (60 s), which would otherwise use a connection that was
just closed.
"""
BACKLOG = 2_048
CLOSE_SECONDS = 1.0
"""Time, at most doubled, for clients that have received every byte to close their end while the server stops."""


class CannotListen(Exception):
    """The address is in use, or not this machine's; the message names it and the cause."""


def listen(address: Address, *, shared: bool = False) -> socket.socket:
    """Bind before other parts start, so that a port in use fails early. Raises `CannotListen`.

    `shared` is for processes of one service: the kernel distributes connections among their listeners.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    # asyncio disables Nagle's delay only on sockets with the protocol TCP; with the delay each answer takes 40 ms.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((address.host, address.port))
        bound.listen(BACKLOG)
        bound.setblocking(False)
    except OSError as error:
        bound.close()
        raise CannotListen(f"cannot listen on http://{address}: {error.strerror or error}") from error
    return bound


def url_of(bound: socket.socket, scheme: str = "http") -> str:
    """Return the URL of a bound socket, with its actual port."""
    host, port = bound.getsockname()[:2]
    return f"{scheme}://{Address(host, port)}"


class HttpServer(uvicorn.Server):
    """Runs until `stop()`, then answers open requests. The lifecycle handles signals."""

    def __init__(
        self,
        app: ASGIApp,
        bound: list[socket.socket],
        *,
        drain_timeout_ms: int,
        tls: ssl.SSLContext | None = None,
        connections: Connections | None = None,
        member_calls: MemberCalls | None = None,
    ) -> None:
        """`member_calls` are those of `app`, if each request reaches `app` unchanged. Without them `app` answers all
        requests.
        """
        self._bound = bound
        self._tls = tls
        self._connections = connections or Connections(BUDGETS, room(), lambda _: None)
        config = HttpConfig(
            app,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=max(1, drain_timeout_ms // 1000),
        )
        config.connections = self._connections
        config.member_calls = member_calls
        config.load()
        super().__init__(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._tls is None:
            await super().startup(sockets)
            return
        await super().startup([])
        for each in sockets or ():
            listener: Any = TlsListener(each, self._tls, self._connections, self._create_protocol)
            self.servers.append(listener)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        async with self._cutting_off(CLOSE_SECONDS, unread=False):
            await super().shutdown(sockets)

    @contextlib.asynccontextmanager
    async def _cutting_off(self, every_s: float, *, unread: bool) -> AsyncIterator[None]:
        """End connections that are closed here and from which the client has read no byte since the last check.

        TLS waits 30 s for a client's `close_notify`, and TCP forever for a client to read. Connections with unread
        bytes are ended only with `unread`.
        """
        cutting_off = asyncio.create_task(self._cut_off(every_s, unread=unread))
        try:
            yield
        finally:
            cutting_off.cancel()
            await asyncio.gather(cutting_off, return_exceptions=True)

    async def _cut_off(self, every_s: float, *, unread: bool) -> None:
        before: dict[Any, int] = {}
        while True:
            await asyncio.sleep(every_s)
            transports = [each.transport for each in self.server_state.connections]
            closing = {each: each.get_write_buffer_size() for each in transports if each.is_closing()}
            for transport, size in closing.items():
                if before.get(transport) == size and (unread or not size):
                    transport.abort()
            before = closing

    def _create_protocol(self) -> HttpConnection:
        return HttpConnection(self.config, self.server_state, self.lifespan.state)

    async def run_until_stopped(self) -> None:
        async with self._cutting_off(WRITE_DEADLINE_SECONDS, unread=True):
            await self.serve(sockets=self._bound)

    def stop(self) -> None:
        self.should_exit = True
