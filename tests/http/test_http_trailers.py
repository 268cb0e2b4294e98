"""Trailers: no listener keeps them, believes them, or waits for their end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest
from starlette.types import Receive, Scope, Send

from rota.agents.sidecar.serve import _Server as SidecarServer
from rota.core.access.sources import Proxies, parse_networks
from rota.server.http import connection
from rota.server.http_server import HttpServer, listen
from rota.server.proxies import TrustedProxies
from rota.server.settings import Address
from tests.access.guarded import NAMESPACE, Secrets, a_guarded_service

CHUNKED = b"POST /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
READ_BYTES = 256 * 1024
"""As much as an event loop reads at once, at most."""
LISTENERS = ("server", "sidecar")


class Seen:
    """An application that reads the body, then answers with nothing, and keeps the headers that it was given."""

    def __init__(self, *, reads: bool = True) -> None:
        self.scopes: list[Scope] = []
        self._reads = reads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        while self._reads and (await receive()).get("more_body", False):
            pass
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})


@asynccontextmanager
async def a_listener(kind: str, app: Seen | TrustedProxies) -> AsyncIterator[tuple[str, int]]:
    bound = listen(Address("127.0.0.1", 0))
    server: HttpServer | SidecarServer
    server = HttpServer(app, [bound], drain_timeout_ms=1_000) if kind == "server" else SidecarServer(app, bound)
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    try:
        yield bound.getsockname()
    finally:
        server.should_exit = True
        await serving


async def exchange(address: tuple[str, int], *parts: bytes) -> bytes:
    """Send the parts, and read until the server closes the connection."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        async with asyncio.timeout(30):
            return await reader.read()
    finally:
        writer.close()


async def pour(address: tuple[str, int], head: bytes, line: bytes) -> int:
    """Send the head, then the line without end. Returns how many bytes were sent when the connection was closed."""
    loop, sent = asyncio.get_running_loop(), 0
    with socket.socket() as plug:
        plug.setblocking(False)
        async with asyncio.timeout(30):
            await loop.sock_connect(plug, address)
            await loop.sock_sendall(plug, head)
            try:
                while sent < 64 * READ_BYTES:
                    await loop.sock_sendall(plug, line)
                    sent += len(line)
            except OSError:
                pass
    return sent


@pytest.mark.parametrize("kind", LISTENERS)
async def test_trailers_do_not_become_headers(kind: str) -> None:
    seen = Seen()
    trailers = b"Authorization: Bearer x\r\nContent-Type: text/plain\r\nX-Forwarded-For: 6.6.6.6\r\n\r\n"

    async with a_listener(kind, seen) as address:
        answer = await exchange(address, CHUNKED, trailers)

    assert answer.startswith(b"HTTP/1.1 204")
    names = {name for name, _ in seen.scopes[0]["headers"]}
    assert names == {b"host", b"connection", b"transfer-encoding"}


@pytest.mark.parametrize("kind", LISTENERS)
@pytest.mark.parametrize("line", [b"x: y\r\n" * 10_000, b"z" * 60_000], ids=["many lines", "one line"])
async def test_an_endless_trailer_is_cut_off(kind: str, line: bytes) -> None:
    """The sockets' buffers come on top of the bound, so the test asks for a tenth of the bytes that it would send."""
    seen = Seen()

    async with a_listener(kind, seen) as address:
        sent = await pour(address, CHUNKED, line)

    assert sent < 32 * READ_BYTES
    assert sum(len(name) + len(value) for name, value in seen.scopes[0]["headers"]) < 100


@pytest.mark.parametrize("kind", LISTENERS)
async def test_a_trailer_after_the_answer_is_cut_off(kind: str) -> None:
    """Where an application answers without reading, as a probe does, the rest is bounded as well."""
    head = CHUNKED.replace(b"Connection: close\r\n", b"").replace(b"POST", b"GET")

    async with a_listener(kind, Seen(reads=False)) as address:
        sent = await pour(address, head, b"x: y\r\n" * 10_000)

    assert sent < 32 * READ_BYTES


@pytest.mark.parametrize("kind", LISTENERS)
async def test_the_rest_of_an_answered_request_has_a_deadline(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "REST_DEADLINE_SECONDS", 0.05)
    unfinished = b"GET /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nx: y"

    async with a_listener(kind, Seen(reads=False)) as address:
        answer = await exchange(address, unfinished)

    assert answer.count(b"HTTP/1.1 204") == 1


async def an_empty_line_after_an_answer(address: tuple[str, int]) -> bytes:
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(4):
            answer = await reader.readuntil(b"\r\n\r\n")
            writer.write(b"\r\n")
            return answer + await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize("kind", LISTENERS)
async def test_empty_lines_between_requests_are_bounded(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_DEADLINE_SECONDS", 0.05)

    async with a_listener(kind, Seen()) as address:
        silent = await an_empty_line_after_an_answer(address)
    async with a_listener(kind, Seen()) as address:
        sent = await pour(address, b"", b"\r\n" * 10_000)

    assert silent.startswith(b"HTTP/1.1 204")
    assert sent < 32 * READ_BYTES


@pytest.mark.parametrize("kind", LISTENERS)
async def test_a_body_in_small_chunks_is_read_whole(kind: str) -> None:
    seen, chunks = Seen(), b"1\r\n \r\n" * 40_000
    head = CHUNKED.removesuffix(b"2\r\n{}\r\n0\r\n")

    async with a_listener(kind, seen) as address:
        answer = await exchange(address, head, chunks, b"0\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 204")


async def test_a_trailer_forges_no_forwarding_header() -> None:
    """As behind a proxy that adds its own header and passes trailers on."""
    seen = Seen()
    head = CHUNKED.replace(b"Host: x\r\n", b"Host: x\r\nX-Forwarded-For: 192.0.2.7\r\n")

    async with a_listener("server", TrustedProxies(seen, Proxies(parse_networks("127.0.0.1")))) as address:
        await exchange(address, head, b"X-Forwarded-For: 6.6.6.6\r\nX-Forwarded-Proto: https\r\n\r\n")

    assert (seen.scopes[0]["client"], seen.scopes[0]["scheme"]) == (("192.0.2.7", 0), "http")


async def test_a_trailer_authenticates_no_caller(tmp_path_factory: pytest.TempPathFactory) -> None:
    async with a_guarded_service(Secrets(tmp_path_factory.mktemp("secrets"))) as service:
        url, token = urlsplit(str(service.http.base_url)), service.secrets.a_token("w")
        path = f"/v1/namespaces/{NAMESPACE}/groups/g/heartbeat".encode()
        beat = b'{"member_id": "m", "generation_id": 1}'
        request = CHUNKED.replace(b"/x", path).replace(b"2\r\n{}", b"%x\r\n%b" % (len(beat), beat))
        trailer = f"Authorization: Bearer {token}\r\n\r\n".encode()
        answer = await exchange((url.hostname or "", url.port or 0), request + trailer)

    assert answer.startswith(b"HTTP/1.1 401")


@pytest.mark.parametrize("kind", LISTENERS)
async def test_a_request_to_change_the_protocol_is_the_last(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is answered as any other request. No line of the log is the client's to write."""
    upgrade = b"GET /x HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"
    last = b"GET /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

    async with a_listener(kind, Seen()) as address:
        answers = await exchange(address, upgrade + last, last)
        with_body = await exchange(
            address, upgrade.replace(b"\r\n\r\n", b"\r\nContent-Length: %d\r\n\r\n" % len(last)) + last
        )
        broken = await exchange(address, b"nonsense\r\n\r\n")

    assert answers.count(b"HTTP/1.1 ") == answers.count(b"HTTP/1.1 204") == 1
    assert b"connection: close" in answers
    assert with_body.count(b"HTTP/1.1 ") == with_body.count(b"HTTP/1.1 400") == 1
    assert broken.startswith(b"HTTP/1.1 400")
    assert caplog.records == []
