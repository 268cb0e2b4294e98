"""An API that is served twice, for tests that compare the two: connections answer member calls, or the router does."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from starlette.types import Receive, Scope, Send

from rota.protocol.limits import Limits
from rota.server.http.app import HttpApi, create_app
from rota.server.http_server import HttpServer, listen
from rota.server.observability.metrics import Metrics
from rota.server.settings import Address
from tests.http.scripted import ScriptedCoordinator

PATH = "/v1/namespaces/default/groups/indexers/heartbeat"
BEAT = b'{"member_id":"m-1","generation_id":7}'
PLAIN = ("Host: localhost", "Content-Type: application/json")
_DATE = re.compile(rb"date: [^\r]*\r\n")


@dataclass
class Listener:
    """One API on a socket; counts the requests that reach the application."""

    api: HttpApi
    server: HttpServer = field(init=False)
    port: int = 0
    ordinary: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.ordinary += 1
        await self.api(scope, receive, send)

    async def exchange(self, *parts: bytes, ends: bool = False) -> bytes:
        """All that is answered, without dates, until the server closes. The parts arrive one by one.

        With `ends` the client closes its side once the server has had its time, for requests that may not be whole.
        """
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        received = b""
        try:
            with suppress(OSError):
                for part in (*parts, LAST):
                    writer.write(part)
                    await writer.drain()
                    await turns(5 if len(parts) > 1 else 0)
                if ends:
                    await turns(100)
                    writer.write_eof()
                async with asyncio.timeout(20):
                    while part := await reader.read(65_536):
                        received += part
        finally:
            writer.close()
        return _DATE.sub(b"", received)


async def turns(count: int) -> None:
    """Let the event loop, which the server shares, go round so many times."""
    for _ in range(count):
        await asyncio.sleep(0)


LAST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
"""Ends each exchange: its answer shows that the server found the end of the request before it."""


def a_request(
    body: bytes = BEAT, *headers: str, path: str = PATH, method: str = "POST", version: str = "1.1", length: str = ""
) -> bytes:
    sized = [f"Content-Length: {length or len(body)}"] if body or length or method != "GET" else []
    lines = [f"{method} {path} HTTP/{version}", *(headers or PLAIN), *sized]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


@asynccontextmanager
async def listening(api: HttpApi, *, fast: bool) -> AsyncIterator[Listener]:
    bound = listen(Address("127.0.0.1", 0))
    listener = Listener(api, port=bound.getsockname()[1])
    server = HttpServer(listener, [bound], drain_timeout_ms=1_000, member_calls=api.member_calls if fast else None)
    listener.server = server
    serving = asyncio.create_task(server.run_until_stopped())
    try:
        yield listener
    finally:
        server.stop()
        await serving


@dataclass
class Both:
    """The same API twice: `fast` answers plain member calls in its connections, `plain` answers none there."""

    metrics: Metrics
    fast: Listener
    plain: Listener
    scripted: ScriptedCoordinator = field(default_factory=ScriptedCoordinator)
    """The coordinator behind both, in tests that script it."""


@asynccontextmanager
async def scripted_both_ways(limits: Limits | None = None) -> AsyncIterator[Both]:
    """Both, before a coordinator whose answers a test scripts."""
    scripted, metrics = ScriptedCoordinator(), Metrics()
    api = create_app(scripted, limits or Limits(), metrics=metrics)
    async with listening(api, fast=True) as fast, listening(api, fast=False) as plain:
        yield Both(metrics, fast, plain, scripted)


async def as_new(both: Both) -> Both:
    """For the next test: nothing was asked yet."""
    both.scripted.forget()
    await both.fast.exchange(a_request(path="/healthz", method="GET"))
    both.scripted.forget()
    both.fast.ordinary = both.plain.ordinary = 0
    return both


async def compare(both: Both, *parts: bytes) -> tuple[bytes, int]:
    """What both answer, which is the same; and how many of the requests the connections have answered."""
    asked: list[list[object]] = []
    counted: list[dict[str, float]] = []
    answers: list[bytes] = []
    for listener in (both.plain, both.fast):
        both.scripted.requests.clear()
        before = _counts(both.metrics)
        answers.append(await listener.exchange(*parts))
        asked.append(list(both.scripted.requests))
        counted.append({name: value - before.get(name, 0) for name, value in _counts(both.metrics).items()})
    assert answers[0] == answers[1]
    assert asked[0] == asked[1]
    assert _changes(counted[0]) == _changes(counted[1])
    return answers[0], both.plain.ordinary - both.fast.ordinary


async def parked(both: Both, listener: Listener, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection with a request that waits for the coordinator."""
    both.scripted.reply = None
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(request)
    await both.scripted.until_parked(1)
    return reader, writer


async def rest(reader: asyncio.StreamReader) -> bytes:
    """All that a connection receives up to its end, without dates."""
    async with asyncio.timeout(20):
        return _DATE.sub(b"", await reader.read())


def statuses_in(received: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1.1 (\d+)", received)]


def _counts(metrics: Metrics) -> dict[str, float]:
    lines = metrics.exposition().decode().splitlines()
    kept = (line.rpartition(" ") for line in lines if line.startswith(("rota_requests", "rota_heartbeats")))
    return {name: float(value) for name, _, value in kept}


def _changes(counts: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in counts.items() if value}
