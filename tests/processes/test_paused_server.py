"""A server on SQLite that is paused for longer than its lease keeps its shards: the lock of the file is its lease."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from tests.processes.server import SHARD_COUNT, Server
from tests.support.processes import Processes

pytestmark = pytest.mark.processes

LEASE_MS = 1_000
DEADLINE_S = 60.0


@pytest.mark.thorough
async def test_a_paused_server_on_sqlite_keeps_its_shards(processes: Processes, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'rota.db'}"
    server = Server(processes, url, lease_ms=LEASE_MS)
    server.start_and_wait()
    async with httpx.AsyncClient(base_url=server.url, timeout=DEADLINE_S, trust_env=False) as http:
        before = await epochs(http)
        for _ in range(3):
            server.process.pause()
            await asyncio.sleep(1.5 * LEASE_MS / 1_000)
            # The kernel keeps the lock of a process that it does not run.
            second = processes.rota("serve", "--store", url, "--http", "127.0.0.1:0")
            assert await asyncio.to_thread(second.wait_for_exit) == 1
            assert "another service is using this store" in second.output()
            server.process.resume()

            assert (await http.get("/readyz")).status_code == 200
        assert await epochs(http) == before

    assert "shard dropped" not in server.process.output()
    server.process.kill9()
    server.start_and_wait()


async def epochs(http: httpx.AsyncClient) -> list[int]:
    """One for each shard: it grows with each claim."""
    pages = [await http.get("/v1/events", params={"shard": shard_id, "after": 0}) for shard_id in range(SHARD_COUNT)]
    return [page.raise_for_status().json()["epoch"] for page in pages]
