"""Registered topics, and which member works on which: over real sockets, HTTP and gRPC, led by members or not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest

import rota
from rota.client import Client, Member, TopicPartition
from rota.core.replica import assigning
from rota.core.types.consumer import decode_plain_assignment
from rota.protocol.limits import Limits
from rota.server.grpc.server import GrpcServer
from rota.server.http.app import create_app
from rota.server.runtime.clock import SystemClock
from rota.server.runtime.coordinator import LocalCoordinator
from rota.testing.memory import MemoryStore
from tests.client.stage import sizes
from tests.http.serving import serving

SESSION_S = 90.0
DEADLINE_S = 20.0
"""Shorter than the interval of heartbeats: members must be notified, not find out."""
LED_BY_MEMBERS, LED_BY_THE_SERVER = "", "server:"


@pytest.fixture
async def coordinator(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalCoordinator]:
    # Notified, or never.
    monkeypatch.setattr(assigning, "REFRESH_MS", 3_600_000)
    clock = SystemClock()
    store = MemoryStore(clock.monotonic_ms)
    await store.open(4)
    async with LocalCoordinator(store, shard_count=4, limits=Limits(initial_rebalance_delay_ms=50)) as coordinator:
        await coordinator.wait_until_ready()
        yield coordinator


@pytest.fixture(params=["http", "grpc", "grpc+stream"])
async def client(request: pytest.FixtureRequest, coordinator: LocalCoordinator) -> AsyncIterator[Client]:
    async with AsyncExitStack() as stack:
        if request.param == "http":
            http = await stack.enter_async_context(serving(create_app(coordinator, coordinator.limits)))
            url = str(http.base_url)
        else:
            server = GrpcServer(coordinator, coordinator.limits)
            await server.start("127.0.0.1")
            stack.push_async_callback(server.stop, 0.2)
            url = f"{request.param}://{server.address}"
        async with rota.connect(url) as client:
            yield client
        await coordinator.drain()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not is_so():  # noqa: ASYNC110 — what members hold has no event on the outside
            await asyncio.sleep(0.02)


async def test_members_of_sdk_and_server_assignment_share_a_group(client: Client) -> None:
    await client.put_topic("t", 6)
    said = {"server:sticky": json.dumps({"topics": ["t"]}).encode()}
    thin: Member[bytes] = client.member("g", protocol_type="consumer", protocols=said, assign=_never)
    async with client.consumer("g", "t", ("sticky", "server:sticky")) as rich:
        await until(lambda: sizes([rich]) == [6])
        async with thin:

            def have_half_each() -> bool:
                mine, other = set(rich.assignment or ()), set(decode_plain_assignment(thin.assignment or b"{}"))
                return len(mine) == len(other) == 3 and mine | other == {TopicPartition("t", n) for n in range(6)}

            await until(have_half_each)
        await until(lambda: sizes([rich]) == [6])


def _never(*_: object) -> dict[str, bytes]:
    raise AssertionError("the server assigns")
