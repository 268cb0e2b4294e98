"""A server as a process: it starts on the store that it finds, and stops without letting any client wait."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import httpx
import pytest

from rota.server.http_server import listen, url_of
from rota.server.settings import Address
from tests.support.ports import free_port
from tests.support.processes import Process, Processes

pytestmark = pytest.mark.processes

GROUP = "/v1/namespaces/default/groups/indexers"
STATIC = {"protocol_type": "worker", "protocols": [{"name": "range"}], "group_instance_id": "pod-0"}


class Server:
    """`rota serve` on a store in a folder of the test."""

    def __init__(self, processes: Processes, folder: Path, *, wait: bool = True) -> None:
        self.store = f"sqlite:///{folder / 'data' / 'rota.db'}"
        self.address = f"127.0.0.1:{free_port()}"
        self.url = f"http://{self.address}"
        self.process: Process = processes.rota("serve", "--store", self.store, "--http", self.address)
        if wait:
            self.process.wait_for_url(f"{self.url}/readyz")


async def test_sigterm_answers_everybody_at_once_and_ends_with_0(processes: Processes, tmp_path: Path) -> None:
    server = Server(processes, tmp_path)
    async with httpx.AsyncClient(base_url=server.url, timeout=30, trust_env=False) as client:
        member = (await client.post(f"{GROUP}/join", json=STATIC)).json()
        ids = {"member_id": member["member_id"], "generation_id": member["generation_id"]}
        await client.post(f"{GROUP}/sync", json=ids)
        async with client.stream("GET", f"{GROUP}/events") as events:
            lines = events.aiter_lines()
            assert await anext(lines) == ": ping"
            others = f"{GROUP}-2"
            await client.post(f"{others}/join", json=STATIC)
            parked = [
                asyncio.create_task(client.post(f"{GROUP}/heartbeat", json={**ids, "wait_ms": 15_000})),
                asyncio.create_task(client.post(f"{others}/join", json={**STATIC, "group_instance_id": "pod-1"})),
            ]
            await until_parked(client, len(parked))
            server.process.send(signal.SIGTERM)
            started = time.monotonic()
            responses = await asyncio.gather(*parked)
            rest = [line async for line in lines]
    exit_code = await asyncio.to_thread(server.process.wait_for_exit)
    took_s = time.monotonic() - started

    assert [response.status_code for response in responses] == [503, 503]
    assert {response.json()["code"] for response in responses} == {"COORDINATOR_NOT_AVAILABLE"}
    assert "event: server-drain" in rest
    assert exit_code == 0
    # On an idle machine it takes a fifth of a second. What must not happen is that the calls are waited for.
    assert took_s < 10


async def answered(client: httpx.AsyncClient, path: str) -> httpx.Response:
    """Ask again for as long as the answer says that this may help, as any client does."""
    async with asyncio.timeout(60):
        while True:
            response = await client.get(path)
            if not response.json().get("retriable"):
                return response


async def until_parked(client: httpx.AsyncClient, calls: int) -> None:
    async with asyncio.timeout(60):
        while True:
            lines = (await client.get("/metrics")).text.splitlines()
            waiting = sum(float(line.split()[-1]) for line in lines if line.startswith("rota_waiters{"))
            if waiting == calls:
                return


@pytest.mark.slow
async def test_what_was_acknowledged_is_there_after_kill_9(processes: Processes, tmp_path: Path) -> None:
    server = Server(processes, tmp_path)
    body = {"offsets": [{"topic": "documents", "partition": 0, "offset": 12}]}
    async with httpx.AsyncClient(base_url=server.url, timeout=30, trust_env=False) as client:
        assert (await client.post(f"{GROUP}/offsets", json=body)).status_code == 200
    server.process.kill9()

    again = Server(processes, tmp_path)
    async with httpx.AsyncClient(base_url=again.url, timeout=30, trust_env=False) as client:
        offsets = (await answered(client, f"{GROUP}/offsets")).json()["offsets"]
    assert [(offset["partition"], offset["offset"]) for offset in offsets] == [(0, 12)]


@pytest.mark.slow
def test_a_taken_port_is_one_line_and_nothing_is_created(processes: Processes, tmp_path: Path) -> None:
    with listen(Address("127.0.0.1", 0)) as taken:
        address = url_of(taken).removeprefix("http://")
        server = processes.rota("serve", "--store", f"sqlite:///{tmp_path / 'new.db'}", "--http", address)
        assert server.wait_for_exit() == 1
    assert f"rota: cannot listen on http://{address}: Address already in use" in server.output()
    assert "Traceback" not in server.output()
    assert not (tmp_path / "new.db").exists()


@pytest.mark.slow
def test_a_store_that_is_in_use_is_reported(processes: Processes, tmp_path: Path) -> None:
    Server(processes, tmp_path)
    second = Server(processes, tmp_path, wait=False)
    assert second.process.wait_for_exit() == 1
    assert "Traceback" not in second.process.output()


@pytest.mark.thorough
def test_an_empty_postgres_is_rejected_with_the_command(processes: Processes, postgres_dsn: str) -> None:
    server = processes.rota("serve", "--store", postgres_dsn, "--http", f"127.0.0.1:{free_port()}")
    assert server.wait_for_exit() == 1
    assert "rota db upgrade" in server.output()
    assert "Traceback" not in server.output()


@pytest.mark.thorough
def test_what_a_server_writes_is_for_its_user_alone(processes: Processes, tmp_path: Path) -> None:
    """Also what SQLite and libraries write, and the folder of the store."""
    server = Server(processes, tmp_path)

    status = Path(f"/proc/{server.process.pid}/status").read_text()

    assert "\nUmask:\t0077\n" in status
    assert (tmp_path / "data").stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_a_second_signal_ends_the_process_on_the_spot(processes: Processes, tmp_path: Path) -> None:
    slow = processes.rota(
        *("serve", "--store", f"sqlite:///{tmp_path / 'slow.db'}", "--http", f"127.0.0.1:{free_port()}"),
        env={"ROTA_DRAIN_DELAY_MS": "60000"},
    )
    slow.wait_for_line("listening")
    slow.send(signal.SIGTERM)
    slow.wait_for_line("draining")
    slow.send(signal.SIGTERM)
    assert slow.wait_for_exit(5) == 128 + signal.SIGTERM
