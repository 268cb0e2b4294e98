"""A real server for tests without an event loop, or with one that is not always free."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from rota.client.threads import LoopThread
from tests.client.test_end_to_end import a_server

PATIENCE_S = 60.0


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
