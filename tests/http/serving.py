"""An API on a real socket, in the test's own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from rota.server.http.app import HttpApi
from rota.server.http_server import HttpServer, listen, url_of
from rota.server.settings import Address


@asynccontextmanager
async def serving(api: HttpApi, *, is_direct: bool = True) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the API, which a real uvicorn serves on a free port until the block is left."""
    bound = listen(Address("127.0.0.1", 0))
    base_url = url_of(bound)
    member_calls = api.member_calls if is_direct else None
    server = HttpServer(api, [bound], drain_timeout_ms=2_000, member_calls=member_calls)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.run_until_stopped())
        try:
            async with httpx.AsyncClient(base_url=base_url, timeout=10, trust_env=False) as client:
                yield client
        finally:
            server.stop()
