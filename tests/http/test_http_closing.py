"""Connections that the server closes, and whose clients neither close their end nor read."""

from __future__ import annotations

import asyncio
import socket
from asyncio import AbstractEventLoop
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from rota.server import http_server
from rota.server.http.app import create_app
from rota.server.http.connection import HttpConnection
from rota.server.http_server import HttpServer, listen
from rota.server.settings import Address
from rota.server.tls import ServerTls, TlsFiles
from tests.access.certificates import Authority
from tests.http.both_ways import PLAIN, a_request
from tests.http.scripted import ScriptedCoordinator

HEALTHZ = a_request(b"", PLAIN[0], path="/healthz", method="GET")
WAIT = a_request(b'{"member_id":"m-1","generation_id":7,"wait_ms":9000}')
LONG_S = 20.0

each_loop = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])


@asynccontextmanager
async def a_server(tls: ServerTls | None = None) -> AsyncIterator[tuple[HttpServer, ScriptedCoordinator, int]]:
    bound, scripted = listen(Address("127.0.0.1", 0)), ScriptedCoordinator()
    api, context = create_app(scripted), tls.context() if tls is not None else None
    server = HttpServer(api, [bound], drain_timeout_ms=int(LONG_S * 1000), tls=context, member_calls=api.member_calls)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.run_until_stopped())
        try:
            yield server, scripted, bound.getsockname()[1]
        finally:
            server.stop()


@each_loop
@pytest.mark.parametrize("request_bytes", [HEALTHZ, WAIT], ids=["idle", "parked"])
def test_a_client_that_closes_no_tls_holds_up_no_stop(
    request_bytes: bytes, new_loop: Callable[[], AbstractEventLoop], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its answer, and never says that it has seen the end."""
    monkeypatch.setattr(http_server, "CLOSE_SECONDS", 0.05)
    authority = Authority(tmp_path)
    issued = authority.issue("rota")
    context = authority.client_context()

    def ask(port: int) -> socket.socket:
        client = context.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="127.0.0.1")
        client.sendall(request_bytes)
        return client

    async def scene() -> float:
        async with a_server(ServerTls(TlsFiles(issued.cert, issued.key))) as (server, scripted, port):
            scripted.reply = None
            with await asyncio.to_thread(ask, port) as client:
                if request_bytes == WAIT:
                    await scripted.until_parked(1)
                else:
                    await asyncio.to_thread(client.recv, 4_096)
                stopped_s = asyncio.get_running_loop().time()
                server.stop()
                await scripted.drain()
                while server.server_state.connections:  # noqa: ASYNC110 - there is no event
                    await asyncio.sleep(0.01)
                return asyncio.get_running_loop().time() - stopped_s

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(scene()) < LONG_S / 2


@each_loop
def test_a_client_that_never_reads_keeps_no_closed_connection(
    new_loop: Callable[[], AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unread bytes are too few to pause writing, which has a deadline of its own."""
    monkeypatch.setattr(http_server, "WRITE_DEADLINE_SECONDS", 0.1)

    async def scene() -> None:
        async with a_server() as (server, _, port):
            with socket.socket() as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
                client.connect(("127.0.0.1", port))
                client.setblocking(False)
                connection = await the_connection(server)
                connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
                asked = 0
                while not connection.transport.get_write_buffer_size():
                    client.send(HEALTHZ)
                    asked += 1
                    while server.server_state.total_requests < asked:  # noqa: ASYNC110 - there is no event
                        await asyncio.sleep(0)
                connection.timeout_keep_alive_handler()
                assert connection.transport.is_closing()
                assert not connection.flow.write_paused
                async with asyncio.timeout(LONG_S / 2):
                    while server.server_state.connections:  # noqa: ASYNC110 - there is no event
                        await asyncio.sleep(0.01)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scene())


async def the_connection(server: HttpServer) -> HttpConnection:
    while not server.server_state.connections:  # noqa: ASYNC110 - there is no event
        await asyncio.sleep(0.01)
    [connection] = server.server_state.connections
    assert isinstance(connection, HttpConnection)
    return connection
