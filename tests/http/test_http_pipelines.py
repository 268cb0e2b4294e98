"""Requests that are sent before the answer to the one before them has come."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import httpx
import pytest

from rota.server.http.connection import MAX_WAITING_REQUESTS
from tests.http.scripted import ScriptedCoordinator

pytestmark = pytest.mark.asyncio(loop_scope="module")

GROUP = b"/v1/namespaces/default/groups/g"
NEXT = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def sent(client: httpx.AsyncClient, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    address = urlsplit(str(client.base_url))
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(data)
    return reader, writer


@pytest.mark.parametrize("behind", [0, 1, 3])
async def test_a_stream_ends_with_its_connection(
    behind: int, client: httpx.AsyncClient, scripted: ScriptedCoordinator
) -> None:
    """Also one with further requests behind it, of which it was the last that learned of the end."""
    events = b"GET %b/events HTTP/1.1\r\nHost: localhost\r\n\r\n" % GROUP
    reader, writer = await sent(client, events + NEXT * behind)
    await reader.readuntil(b": ping")
    await scripted.until_watched(1)

    writer.transport.abort()

    await scripted.until_watched(0)


@pytest.mark.parametrize("behind", [0, 1, 3])
async def test_a_parked_call_ends_with_its_connection(
    behind: int, client: httpx.AsyncClient, scripted: ScriptedCoordinator
) -> None:
    scripted.reply = None
    body = b'{"member_id": "m", "generation_id": 1, "wait_ms": 50000}'
    head = b"POST %b/heartbeat HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" % GROUP
    _, writer = await sent(client, head + b"Content-Length: %d\r\n\r\n" % len(body) + body + NEXT * behind)
    await scripted.until_parked(1)

    writer.transport.abort()

    await scripted.until_parked(0)


@pytest.mark.parametrize("path", [b"/healthz", b"/v1/nothing"])
async def test_more_requests_than_may_wait_are_not_kept(path: bytes, client: httpx.AsyncClient) -> None:
    """The connection ends, in order, with the last one of those that wait."""
    reader, writer = await sent(client, NEXT.replace(b"/healthz", path) * 1_000)

    async with asyncio.timeout(30):
        answers = await reader.read()
    writer.close()

    assert answers.count(b"HTTP/1.1 ") == 1 + MAX_WAITING_REQUESTS
    assert answers.count(b"connection: close") == 1
    assert answers.rpartition(b"HTTP/1.1 ")[2].count(b"connection: close") == 1
