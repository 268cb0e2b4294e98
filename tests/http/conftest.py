"""One server per module; the coordinator behind it forgets everything between tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from rota.api.http.app import HttpApi, create_app
from rota.protocol.limits import Limits
from rota.runtime.clock import SystemClock
from rota.runtime.coordinator import LocalCoordinator
from rota.testing.memory import MemoryStore
from tests.http.scripted import ScriptedCoordinator
from tests.http.serving import serving

BOTH_WAYS: dict[str, Any] = {"params": [True, False], "ids": ["in the connection", "by FastAPI"]}
"""Connections answer plain member calls, or FastAPI answers every request."""


@pytest_asyncio.fixture(scope="module", loop_scope="module", **BOTH_WAYS)
async def scripted_server(
    request: pytest.FixtureRequest,
) -> AsyncIterator[tuple[ScriptedCoordinator, HttpApi, httpx.AsyncClient]]:
    coordinator = ScriptedCoordinator()
    api = create_app(coordinator, ping_seconds=0.05)
    async with serving(api, is_direct=request.param) as client:
        yield coordinator, api, client


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


@pytest_asyncio.fixture(scope="module", loop_scope="module", **BOTH_WAYS)
async def real_client(request: pytest.FixtureRequest) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the API with the real coordinator behind it, on a store in memory."""
    clock = SystemClock()
    store = MemoryStore(clock.monotonic_ms)
    await store.open(4)
    limits = Limits(initial_rebalance_delay_ms=0)
    async with LocalCoordinator(store, shard_count=4, limits=limits, clock=clock) as coordinator:
        await coordinator.wait_until_ready()
        async with serving(create_app(coordinator, limits), is_direct=request.param) as client:
            yield client
            await coordinator.drain()
