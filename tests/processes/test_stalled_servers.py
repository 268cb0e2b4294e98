"""A server that stops and goes on: heartbeats that its kernel had received in time count, whatever fires first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rota.client.transports import HttpTransport
from rota.client.transports.port import Transport
from rota.client.transports.stream import StreamTransport
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import Heartbeat, JoinGroup, JoinReply, Protocol, SyncGroup
from tests.processes.server import Server
from tests.support.ports import free_port
from tests.support.processes import Processes

pytestmark = pytest.mark.processes

SESSION_S = 1.5
CONNECTIONS, MEMBERS_EACH = 6, 5
ROUNDS = 6
LATE_S = 0.05
"""By so much a stop outlasts the sessions: less than what the server takes for a stall of its own."""
ESTABLISHED = "01"
PATIENT_MS = 60_000


class Member:
    """One member alone in its group. Over HTTP it has a connection of its own, and another one for each heartbeat."""

    def __init__(self, transport: Transport, url: str, name: str) -> None:
        self._transport = transport
        self._url = url
        self._group = ("default", name)
        self._named = ("", 0)

    async def join(self) -> None:
        protocols, session_ms = (Protocol("p", b"m"),), int(SESSION_S * 1_000)
        join = JoinGroup(*self._group, "worker", protocols, session_ms, 60_000, group_instance_id="i")
        joined = (await self._transport.send(join, timeout_ms=PATIENT_MS)).reply
        assert isinstance(joined, JoinReply)
        self._named = (joined.member_id, joined.generation_id)
        share = ((joined.member_id, b"all"),)
        await self._transport.send(SyncGroup(*self._group, *self._named, assignments=share), timeout_ms=PATIENT_MS)

    async def heartbeat(self) -> ErrorCode:
        beat = Heartbeat(*self._group, *self._named)
        return (await self._transport.send(beat, timeout_ms=PATIENT_MS)).reply.error

    async def heartbeat_anew(self) -> ErrorCode:
        """Over HTTP the server has to accept the connection before it can read the heartbeat."""
        if self._url.startswith("http"):
            await self._transport.close()
            self._transport = HttpTransport([self._url])
        return await self.heartbeat()

    async def leave(self) -> None:
        await self._transport.close()


def unread_connections(port: int) -> int:
    """Connections to this port with bytes that its process has not read, by the kernel's own list."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    here = [row for row in rows if row[1].endswith(f":{port:04X}") and row[3] == ESTABLISHED]
    return sum(int(row[4].partition(":")[2], 16) > 0 for row in here)


@asynccontextmanager
async def a_crowd(url: str) -> AsyncIterator[list[Member]]:
    kind = HttpTransport if url.startswith("http") else StreamTransport
    # Over HTTP a connection carries one call at a time.
    connections = CONNECTIONS * MEMBERS_EACH if kind is HttpTransport else CONNECTIONS
    transports: list[Transport] = [kind([url]) for _ in range(connections)]
    members = [Member(transports[n % connections], url, f"g{n}") for n in range(CONNECTIONS * MEMBERS_EACH)]
    await asyncio.gather(*(member.join() for member in members))
    yield members
    for member in members:
        await member.leave()


async def heartbeats_in_a_stop(server: Server, port: int, members: list[Member], connections: int) -> set[ErrorCode]:
    """Send heartbeats to a stopped server, which goes on just after the sessions seem to be over; return the answers.

    Without those of the stop if this machine was too slow: a heartbeat that arrives too late proves nothing.
    """
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    answers = set(await asyncio.gather(*(member.heartbeat() for member in members)))
    answered_s = loop.time()
    server.process.pause()
    try:
        under_way = [asyncio.create_task(member.heartbeat_anew()) for member in members]
        while unread_connections(port) < connections and loop.time() < began_s + SESSION_S:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        is_in_time = loop.time() < began_s + SESSION_S
        await asyncio.sleep(answered_s + SESSION_S + LATE_S - loop.time())
    finally:
        server.process.resume()
    later = set(await asyncio.gather(*under_way))
    return answers | later if is_in_time else answers


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["http", "grpc+stream"])
async def test_heartbeats_that_lie_unread_in_a_stopped_server_count(
    processes: Processes, tmp_path: Path, kind: str
) -> None:
    grpc_port = free_port()
    options = ("--grpc", f"127.0.0.1:{grpc_port}")
    server = Server(processes, f"sqlite:///{tmp_path / 'rota.db'}", *options, lease_ms=60_000)
    await asyncio.to_thread(server.start_and_wait)
    port = server.port if kind == "http" else grpc_port
    connections = CONNECTIONS * MEMBERS_EACH if kind == "http" else CONNECTIONS
    async with a_crowd(f"{kind}://127.0.0.1:{port}") as members:
        answers = [await heartbeats_in_a_stop(server, port, members, connections) for _ in range(ROUNDS)]

    assert answers == [{ErrorCode.NONE}] * ROUNDS
