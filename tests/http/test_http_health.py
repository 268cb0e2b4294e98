"""`/healthz` says no once the process cannot help itself, and not before."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from rota.server import lifecycle
from rota.server.lifecycle import serve
from rota.server.settings import Address, Settings
from tests.support.ports import free_port

WITHIN_S = 60


@pytest.mark.parametrize("after_ms", [1, 3_600_000])
async def test_a_server_whose_file_was_replaced_asks_for_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after_ms: int
) -> None:
    monkeypatch.setattr(lifecycle, "_HEALTH_INTERVAL_SECONDS", 0.01)
    monkeypatch.setattr(lifecycle, "_FAILING_MS", after_ms)
    settings = Settings(http=Address("127.0.0.1", free_port()), store=f"sqlite:///{tmp_path}/rota.db", lease_ms=1_000)
    stop = asyncio.Event()
    async with (
        asyncio.TaskGroup() as tasks,
        httpx.AsyncClient(base_url=f"http://{settings.http}", trust_env=False) as http,
    ):
        tasks.create_task(serve(settings, stop=stop))
        assert await answer_of(http, "/readyz", 200) == {"outcome": "ready"}
        assert await answer_of(http, "/healthz", 200) == {"outcome": "ok"}

        (tmp_path / "rota.db").rename(tmp_path / "elsewhere.db")
        await answer_of(http, "/readyz", 503)
        is_early = after_ms > 1
        answer = await answer_of(http, "/healthz", 200 if is_early else 503)
        assert answer == {"outcome": "ok"} if is_early else "takes no write of this process" in answer["detail"]
        stop.set()


async def answer_of(http: httpx.AsyncClient, path: str, status: int) -> dict[str, str]:
    """Once the server answers so."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            try:
                answer = await http.get(path)
            except httpx.TransportError:
                continue
            if answer.status_code == status:
                return dict(answer.json())
