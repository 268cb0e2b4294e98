"""Connections are counted from the moment they are accepted: silent, shaking hands, idle, or all of them."""

from __future__ import annotations

import asyncio
import ssl
from asyncio import AbstractEventLoop
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import uvloop

from rota.core.access.budgets import Budgets, Share
from rota.server import connections, tls_listener
from rota.server.connections import RESERVED_FOR_PROBES, Connections
from rota.server.http.app import create_app
from rota.server.http_server import HttpServer, listen
from rota.server.settings import Address
from rota.server.tls import ServerTls, TlsFiles
from tests.abuse.attackers import Line, all_closed
from tests.access.certificates import Authority
from tests.http.scripted import ScriptedCoordinator

MOST = 40
BUDGETS = Budgets(silent_connections=Share(5, 8), handshakes=Share(3, 4))
HEALTHZ = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
WAIT = b"GET /v1/namespaces/default/groups/g/leader?wait_ms=50000 HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Attacked:
    """A server with room for few connections."""

    def __init__(
        self, port: int, coordinator: ScriptedCoordinator, refused: Counter[str], connected: AsyncExitStack
    ) -> None:
        self.port = port
        self.coordinator = coordinator
        self.refused = refused
        self._connected = connected

    async def connect(self, source: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> Line:
        loop = asyncio.get_running_loop()
        _, line = await loop.create_connection(Line, "127.0.0.1", self.port, local_addr=(source, 0), ssl=tls)
        self._connected.callback(line.transport.abort)
        return line

    async def ask(self, line: Line, request: bytes = HEALTHZ) -> int:
        """The status of the answer, 0 where the connection was closed instead."""
        line.received = b""
        line.say(request)
        async with asyncio.timeout(30):
            while not line.status and not line.closed.is_set():
                await asyncio.wait((asyncio.ensure_future(line.closed.wait()),), timeout=0.01)
        return line.status


@asynccontextmanager
async def attacked(budgets: Budgets = BUDGETS, tls: ServerTls | None = None) -> AsyncIterator[Attacked]:
    bound, refused = listen(Address("127.0.0.1", 0)), Counter[str]()
    counted = Connections(budgets, MOST, lambda budget: refused.update([budget]))
    context = tls.context() if tls is not None else None
    coordinator = ScriptedCoordinator()
    server = HttpServer(create_app(coordinator), [bound], drain_timeout_ms=1_000, tls=context, connections=counted)
    async with asyncio.TaskGroup() as tasks, AsyncExitStack() as connected:
        tasks.create_task(server.run_until_stopped())
        try:
            yield Attacked(bound.getsockname()[1], coordinator, refused, connected)
        finally:
            server.stop()


async def test_the_oldest_silent_connection_of_a_source_gives_way() -> None:
    async with attacked() as server:
        silent = [await server.connect() for _ in range(9)]
        await all_closed(silent[:4], 10)

        assert [await server.ask(line) for line in silent[4:]] == [200] * 5
        assert server.refused == {"silent_connections": 4}


async def test_hosts_of_one_ipv6_network_are_one_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SILENT_S", 0.0)
    closed: list[str] = []
    ended = asyncio.Event()
    counted = Connections(BUDGETS, MOST, lambda _: ended.set())
    for host in (*(f"2001:db8::{n}" for n in range(6)), "2001:db8:0:1::1", "192.0.2.7"):
        counted.enter(host, partial(closed.append, host))
    async with asyncio.timeout(10):
        await ended.wait()

    assert closed == ["2001:db8::0"]


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_connections_that_come_together_with_requests_all_stay(new_loop: Callable[[], AbstractEventLoop]) -> None:
    """As those of a proxy that connects anew: it connects first, then it writes."""

    async def main() -> None:
        async with attacked() as server:
            together = [await server.connect() for _ in range(30)]

            assert await asyncio.gather(*map(server.ask, together)) == [200] * 30
            assert not server.refused

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


async def test_a_source_that_has_most_gives_way_to_others() -> None:
    async with attacked() as server:
        silent = [await server.connect("127.0.0.2") for _ in range(5)]
        others = [await server.connect(f"127.0.0.{number}") for number in range(3, 7)]
        await all_closed(silent[:1], 10)

        assert [await server.ask(line) for line in (*silent[1:], *others)] == [200] * 8


async def test_idle_connections_make_room_for_new_ones() -> None:
    """An attacker asks once on each connection, and then holds it."""
    async with attacked() as server:
        idle = [await server.connect("127.0.0.2") for _ in range(1)]
        for _ in range(MOST - 1):
            line = await server.connect("127.0.0.2")
            assert await server.ask(line) == 200
            idle.append(line)
        honest = await server.connect()

        assert await server.ask(honest) == 200
        assert await server.ask(honest, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n") == 200
        await all_closed(idle[: MOST // 2], 10)


async def test_probes_are_answered_where_all_connections_are_in_use() -> None:
    async with attacked() as server:
        server.coordinator.reply = None
        for number in range(MOST):
            (await server.connect("127.0.0.2")).say(WAIT)
            await server.coordinator.until_parked(number + 1)
        silent = [await server.connect("127.0.0.2") for _ in range(3 * RESERVED_FOR_PROBES)]

        probe = await server.connect()
        assert await server.ask(probe) == 200
        assert await server.ask(await server.connect(), WAIT) == 503
        await all_closed(silent[:RESERVED_FOR_PROBES], 10)


async def test_handshakes_that_never_end_are_counted(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("rota")
    async with attacked(tls=ServerTls(TlsFiles(issued.cert, issued.key))) as server:
        silent = [await server.connect() for _ in range(8)]
        await all_closed(silent[:5], 10)

        honest = await server.connect(tls=authority.client_context())

        assert await server.ask(honest) == 200
        assert server.refused["handshakes"] >= 5


async def test_handshakes_have_little_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_listener, "HANDSHAKE_SECONDS", 0.2)
    authority = Authority(tmp_path)
    issued = authority.issue("rota")
    async with attacked(tls=ServerTls(TlsFiles(issued.cert, issued.key))) as server:
        silent = await server.connect()

        await all_closed([silent], 10)
