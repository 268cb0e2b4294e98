"""The path of an rpc that is not UTF-8: it ends that rpc, and neither the server nor the port for peers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from rota.core.replica.ports import Replica
from rota.protocol.messages import ListTopics
from rota.server.grpc.server import GrpcServer
from rota.server.peer.client import GrpcPeers
from rota.server.peer.server import PeerServer
from rota.server.runtime.coordinator import LocalCoordinator
from tests.fuzz.http2 import PREFACE, a_head
from tests.support.peers import answered

SECRET = "a secret of the replicas"
CHECK = "/grpc.health.v1.Health/Check"


@asynccontextmanager
async def a_port(kind: str, coordinator: LocalCoordinator) -> AsyncIterator[int]:
    if kind == "grpc":
        server = GrpcServer(coordinator)
        await server.start("127.0.0.1")
        try:
            yield int(server.address.rpartition(":")[2])
        finally:
            await server.stop(0)
    else:
        peer = PeerServer(coordinator, "127.0.0.1", secrets=lambda: [SECRET])
        await peer.start()
        try:
            yield peer.port
        finally:
            await peer.stop()


@pytest.mark.parametrize("kind", ["grpc", "peer"])
async def test_a_server_outlives_an_unreadable_path(kind: str, coordinator: LocalCoordinator) -> None:
    async with a_port(kind, coordinator) as port:
        for path in (b"/a\xff/b", b"\xff", b"/" + b"\xc3" * 100):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(PREFACE + a_head(1, path))
            async with asyncio.timeout(30):
                assert await reader.read(1)
            writer.close()

        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            await is_answered(kind, port, channel)
            for unknown in ("/rota.v1.GroupCoordinator/NoSuch", "/no.such/Method"):
                call: Any = channel.unary_unary(unknown)
                with pytest.raises(grpc.aio.AioRpcError, match="UNIMPLEMENTED"):
                    await call(b"", timeout=30)


async def is_answered(kind: str, port: int, channel: grpc.aio.Channel) -> None:
    if kind == "grpc":
        check: Any = channel.unary_unary(CHECK)
        await check(b"", timeout=30)
        return
    peers = GrpcPeers(lambda: [SECRET])
    await answered(peers, Replica("r", "http://r", f"127.0.0.1:{port}"), ListTopics("default"))
    await peers.close()
