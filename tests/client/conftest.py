"""A real server for tests without an event loop, or with one that is not always free."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from rota.client.threads import LoopThread
from rota.protocol.limits import Limits
from rota.server.http.app import create_app
from rota.server.runtime.clock import SystemClock
from rota.server.runtime.coordinator import LocalCoordinator
from rota.testing.memory import MemoryStore
from tests.http.serving import serving

PATIENCE_S = 60.0


@asynccontextmanager
async def a_server() -> AsyncIterator[str]:
    """The URL of a real server."""
    clock = SystemClock()
    store = MemoryStore(clock.monotonic_ms)
    await store.open(4)
    limits = Limits(initial_rebalance_delay_ms=50)
    async with LocalCoordinator(store, shard_count=4, limits=limits, clock=clock) as coordinator:
        await coordinator.wait_until_ready()
        async with serving(create_app(coordinator, limits)) as http:
            yield str(http.base_url)


@pytest.fixture
def url() -> Iterator[str]:
    """A real server in a thread of its own."""
    thread = LoopThread("server")
    thread.start()
    ready, done = threading.Event(), asyncio.Event()
    found: list[str] = []

    async def serve() -> None:
        async with a_server() as url:
            found.append(url)
            ready.set()
            await done.wait()

    async def finish() -> None:
        done.set()

    serving = thread.submit(serve())
    assert ready.wait(PATIENCE_S)
    yield found[0]
    thread.run(finish())
    serving.result(PATIENCE_S)
    thread.stop()
