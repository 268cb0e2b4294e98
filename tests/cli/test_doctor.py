"""`rota doctor` judges the present: a fault that is over is no finding, one that goes on is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from rota.cli import doctor
from rota.cli.calls import Server
from rota.cli.doctor import Checked, examine
from rota.cli.options import Shared
from tests.cli.conftest import Rota
from tests.client.strange_servers import listening
from tests.processes.server import Server as Process
from tests.support.processes import Processes
from tests.support.valkey import ValkeyServer

pytestmark = pytest.mark.processes

Exposition = Callable[[int], str]
"""The metrics that a server shows when they are read for the first time, the second time and so on."""


async def examined(metrics: Exposition, monkeypatch: pytest.MonkeyPatch) -> dict[str, Checked]:
    """The checks on a server that shows these metrics."""
    monkeypatch.setattr(doctor, "WINDOW_S", 0.0)
    times = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal times
        while request := await reader.readline():
            while await reader.readline() not in (b"\r\n", b""):
                pass
            body = b'{"groups": [], "more": false}'
            if b" /metrics " in request:
                body, times = metrics(times).encode(), times + 1
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
            await writer.drain()

    def look(port: int) -> list[Checked]:
        with Server(Shared(f"http://127.0.0.1:{port}")) as server:
            return list(examine(server))

    async with listening(serve) as port:
        return {each.check: each for each in await asyncio.to_thread(look, port)}


async def test_a_fault_of_the_store_that_is_over_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await examined(lambda _times: 'rota_store_failures_total{operation="claim"} 3\n', monkeypatch)

    assert found["store"].ok
    assert found["store"].found.endswith("no failed call; 3 failed calls since the start")


async def test_commits_are_judged_by_those_of_the_present(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred slow commits long ago, ten quick ones now; and the other way round."""

    def recovered(times: int) -> str:
        return _commits(100 + 10 * times, 100.0 + 0.1 * times)

    def failing(times: int) -> str:
        return _commits(1_000 + 10 * times, 1.0 + 10.0 * times)

    assert (await examined(recovered, monkeypatch))["store"].ok
    assert not (await examined(failing, monkeypatch))["store"].ok


def _commits(number: int, seconds: float) -> str:
    name = "rota_commit_duration_seconds"
    return f"{name}_count {number}\n{name}_sum {seconds}\n"


@pytest.mark.thorough
def test_a_redis_that_answers_is_found_before_any_member_joins(
    processes: Processes, valkey_server: ValkeyServer, tmp_path: Path
) -> None:
    server = Process(processes, f"sqlite:///{tmp_path / 'rota.db'}", "--redis", valkey_server.url)
    server.start_and_wait()

    done = Rota(server.url, server.store_url, "default")("doctor")

    (line,) = (line for line in done.out.splitlines() if line.startswith("redis"))
    assert line.split()[1:3] == ["yes", "answers,"]
