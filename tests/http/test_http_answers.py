"""How answers leave the server: the bytes on their connection, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio

from rota.server.http.app import create_app
from rota.server.http.connection import HttpConnection
from rota.server.http_server import HttpServer
from tests.http.scripted import ScriptedCoordinator

REQUEST = (
    "POST /v1/namespaces/default/groups/g/leave HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
    "Content-Type: application/json\r\n"
)


class Wire(asyncio.Transport):
    """The server's end of a connection that keeps the bytes that are written."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: asyncio.Queue[bytes] = asyncio.Queue()

    def write(self, data: Any) -> None:
        self.writes.put_nowait(bytes(data))

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        """No client is at the other end."""

    def resume_reading(self) -> None:
        """It never pauses."""


@pytest_asyncio.fixture
async def connection() -> AsyncIterator[tuple[HttpConnection, Wire]]:
    server = HttpServer(create_app(ScriptedCoordinator()), [], drain_timeout_ms=1_000)
    wire = Wire()
    protocol = HttpConnection(server.config, server.server_state, {})
    protocol.connection_made(wire)
    yield protocol, wire
    protocol.connection_lost(None)


async def test_who_asks_before_sending_a_body_is_answered_first(connection: tuple[HttpConnection, Wire]) -> None:
    protocol, wire = connection

    protocol.data_received(f"{REQUEST}Expect: 100-continue\r\n\r\n".encode())
    async with asyncio.timeout(5):
        assert await wire.writes.get() == b"HTTP/1.1 100 Continue\r\n\r\n"
        protocol.data_received(b"{}")
        assert (await wire.writes.get()).startswith(b"HTTP/1.1 ")


class ClosedWire(Wire):
    """A connection that is closed when a test asks for it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_closed = False

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True


class Counting(HttpConnection):
    """Counts the headers and trailers that are parsed."""

    parsed = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self.parsed += 1
        super().on_header(name, value)


async def test_not_all_trailers_of_one_read_are_parsed() -> None:
    server = HttpServer(create_app(ScriptedCoordinator()), [], drain_timeout_ms=1_000)
    protocol = Counting(server.config, server.server_state, {})
    protocol.connection_made(ClosedWire())
    protocol.data_received(b"POST /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n")

    protocol.data_received(b"x: y\r\n" * 40_000)

    assert protocol.parsed < 3 * 65_536 / 6
    protocol.connection_lost(None)
