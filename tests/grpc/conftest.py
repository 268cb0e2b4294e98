"""A gRPC server on a free port, in the test's own loop, with the real coordinator on a store in memory behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from rota.protocol.limits import Limits
from rota.server.grpc.server import GrpcServer
from rota.server.observability.metrics import Metrics
from rota.server.runtime.clock import SystemClock
from rota.server.runtime.coordinator import LocalCoordinator
from rota.testing.memory import MemoryStore
from rota.v1 import coordinator_pb2 as pb
from tests.grpc.clients import Channel, SessionClient

LIMITS = Limits(initial_rebalance_delay_ms=0)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(SystemClock().monotonic_ms)


@pytest.fixture
async def coordinator(store: MemoryStore) -> AsyncIterator[LocalCoordinator]:
    await store.open(2)
    async with LocalCoordinator(store, shard_count=2, limits=LIMITS) as coordinator:
        await coordinator.wait_until_ready()
        yield coordinator


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
async def server(coordinator: LocalCoordinator, metrics: Metrics) -> AsyncIterator[GrpcServer]:
    server = GrpcServer(coordinator, LIMITS, metrics=metrics)
    await server.start("127.0.0.1")
    yield server
    await server.stop(0.2)


@pytest.fixture
async def channel(server: GrpcServer) -> AsyncIterator[Channel]:
    async with grpc.aio.insecure_channel(server.address) as channel:
        yield channel


@pytest.fixture
async def session(channel: Channel) -> AsyncIterator[SessionClient]:
    async with an_open_stream(channel) as client:
        yield client


@pytest.fixture
async def other(channel: Channel) -> AsyncIterator[SessionClient]:
    async with an_open_stream(channel) as client:
        yield client


@asynccontextmanager
async def an_open_stream(channel: Channel) -> AsyncIterator[SessionClient]:
    """A stream the server counts among its own: it has answered there."""
    client = SessionClient(channel)
    await client.ask(options=pb.SessionOptions())
    yield client
    await client.close()
