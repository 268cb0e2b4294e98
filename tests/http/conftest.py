"""One server per module; the coordinator behind it forgets everything between tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from rota.protocol.limits import Limits
from rota.server.http.app import HttpApi, create_app
from rota.server.runtime.clock import SystemClock
from rota.server.runtime.coordinator import LocalCoordinator
from rota.testing.memory import MemoryStore
from tests.http.both_ways import Both, as_new, scripted_both_ways
from tests.http.scripted import ScriptedCoordinator
from tests.http.serving import serving


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scripted_server() -> AsyncIterator[tuple[ScriptedCoordinator, HttpApi, httpx.AsyncClient]]:
    coordinator = ScriptedCoordinator()
    api = create_app(coordinator, ping_seconds=0.05)
    async with serving(api) as client:
        yield coordinator, api, client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers() -> AsyncIterator[Both]:
    """The same API twice: connections answer plain member calls, or the router answers all."""
    async with scripted_both_ways() as both:
        yield both


@pytest_asyncio.fixture(loop_scope="module")
async def both(servers: Both) -> Both:
    return await as_new(servers)


@pytest_asyncio.fixture(loop_scope="module")
async def scripted(
    scripted_server: tuple[ScriptedCoordinator, HttpApi, httpx.AsyncClient],
) -> AsyncIterator[ScriptedCoordinator]:
    """The coordinator behind `client`. A test that leaves calls or streams behind fails."""
    coordinator = scripted_server[0]
    coordinator.forget()
    yield coordinator
    await coordinator.until_watched(0)
    await coordinator.until_parked(0)


@pytest.fixture
def api(scripted_server: tuple[ScriptedCoordinator, HttpApi, httpx.AsyncClient]) -> HttpApi:
    return scripted_server[1]


@pytest.fixture
def client(
    scripted_server: tuple[ScriptedCoordinator, HttpApi, httpx.AsyncClient], scripted: ScriptedCoordinator
) -> httpx.AsyncClient:
    """A client of the API with the scripted coordinator behind it."""
    return scripted_server[2]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def real_client() -> AsyncIterator[httpx.AsyncClient]:
    """A client of the API with the real coordinator behind it, on a store in memory."""
    clock = SystemClock()
    store = MemoryStore(clock.monotonic_ms)
    await store.open(4)
    limits = Limits(initial_rebalance_delay_ms=0)
    async with LocalCoordinator(store, shard_count=4, limits=limits, clock=clock) as coordinator:
        await coordinator.wait_until_ready()
        async with serving(create_app(coordinator, limits)) as client:
            yield client
            await coordinator.drain()
