"""The port for peers, attacked by callers without its secret: a whole replica on Postgres, at its peak."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import pytest_asyncio

from rota.core.replica.ports import Answer
from rota.core.replica.ports import Replica as AnotherReplica
from rota.protocol.messages import ListTopics
from rota.server.peer.client import GrpcPeers
from rota.server.peer.messages import EXCHANGE, MAX_MESSAGE_BYTES
from tests.abuse.target import DEADLINE_S, Target
from tests.support.peers import asked
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer
from tests.support.processes import Processes
from tests.support.raw_http2 import CONTINUATION, HEADERS, PING, RESET, SETTINGS, RawHttp2

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]

HOST = "127.0.0.1"
MOST_MIB = 48
MOST_OF_HEADERS_MIB = 96
"""For floods of 36 MB in headers, which gRPC's parser keeps: up to 73 MiB, if the replica gets a tenth of a core."""
ALL_BUT_ONE = b"x" * (MAX_MESSAGE_BYTES - 1)
CALLS = 40
FRAMES = 3_000
SECRET = "the secret of the replicas"
SMALL = b"x" * 1_000
A_FIELD = b"\0\1x\7x" + b"x" * 6


class Replica(Target):
    """The target, with a port for peers."""

    peer_port: int

    async def answers_a_peer(self) -> None:
        """A call with the secret, on a new connection, is answered."""
        peers = GrpcPeers(lambda: [SECRET])
        peer = AnotherReplica("r", "http://r", f"{HOST}:{self.peer_port}")
        async with asyncio.timeout(DEADLINE_S):
            while not isinstance(await asked(peers, peer, ListTopics("default")), Answer):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        await peers.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresServer) -> AsyncIterator[Replica]:
    """`rota serve` on Postgres with a port for peers and their secret."""
    folder = tmp_path_factory.mktemp("replica")
    processes = Processes(folder)
    store, secret, port = postgres_server.create_database(), folder / "secret", free_port()
    secret.write_text(SECRET)
    secret.chmod(0o600)
    assert processes.rota("db", "upgrade", "--store", store).wait_for_exit() == 0
    options = ("--peer", f"{HOST}:{port}", "--peer-secret-file", str(secret))
    attacked = Replica(processes, folder, store=store, options=options)
    attacked.peer_port = port
    yield attacked
    await attacked.close()
    processes.close()


@pytest.mark.parametrize("connections", [1, CALLS])
async def test_unfinished_calls_of_strangers_take_no_memory(connections: int, replica: Replica) -> None:
    async with replica.unharmed(MOST_MIB, f"{CALLS} calls of 64 MiB that lack a byte, on {connections} connections"):
        async with strangers(replica, connections) as opened:
            for number in range(CALLS):
                opened[number % connections].begin(EXCHANGE, MAX_MESSAGE_BYTES, ALL_BUT_ONE)
            await asyncio.gather(*(raw.until_ended(CALLS // connections) for raw in opened))
        await replica.answers_a_peer()


@pytest.mark.thorough
@pytest.mark.parametrize("attack", ["calls", "pings", "settings", "resets", "metadata", "continuations"])
async def test_floods_of_strangers_take_no_memory(attack: str, replica: Replica) -> None:
    """On 10 connections, as fast as the replica reads them. Its memory does not depend on how many there are."""
    most_mib = MOST_OF_HEADERS_MIB if attack in ("metadata", "continuations") else MOST_MIB
    async with replica.unharmed(most_mib, f"floods of {attack}"), strangers(replica, 10) as opened:
        await asyncio.gather(*(flood(raw, attack) for raw in opened))
        await replica.answers_a_peer()


async def flood(raw: RawHttp2, attack: str) -> None:
    for number in range(FRAMES):
        match attack:
            case "calls":
                raw.begin(EXCHANGE, len(SMALL), SMALL)
            case "pings":
                raw.send(PING, 0, 0, number.to_bytes(8, "big"))
            case "settings":
                raw.send(SETTINGS, 0, 0, struct.pack(">HI", 4, number))
            case "resets":
                raw.send(RESET, 0, raw.head(EXCHANGE), bytes(4))
            case "metadata":
                raw.head(EXCHANGE, {f"x-{each}": "x" * 100 for each in range(100)})
            case "continuations":
                raw.send(CONTINUATION if number else HEADERS, 0, 1, A_FIELD * 100)
        if number % 100 == 0:
            await raw.drained()


@asynccontextmanager
async def strangers(replica: Replica, count: int) -> AsyncIterator[list[RawHttp2]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(RawHttp2(HOST, replica.peer_port)) for _ in range(count)]
