"""`rota serve` as a process: it gets ready, refuses clearly, and stops without letting a client wait for nothing."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.processes.server import Server
from tests.support.postgres import PostgresServer
from tests.support.processes import Process, Processes

pytestmark = pytest.mark.processes

DEADLINE_S = 60.0


@pytest.fixture
def server(processes: Processes, tmp_path: Path) -> Server:
    return Server(processes, f"sqlite:///{tmp_path / 'rota.db'}")


@pytest.fixture
async def http(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=DEADLINE_S, trust_env=False) as client:
        yield client


def test_a_server_says_where_it_listens_and_when_it_is_ready(server: Server) -> None:
    server.start_and_wait()

    server.process.wait_for_line(rf"listening url={server.url} ")
    server.process.wait_for_line(r"ready shards=4$")
    assert server.process.terminate() == 0


@pytest.mark.thorough
def test_without_a_store_a_file_in_the_data_folder_is_used(processes: Processes, tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "data")}
    serving = processes.rota("serve", "--http", "127.0.0.1:0", env=home)

    serving.wait_for_line('"ready"')

    assert list(tmp_path.rglob("rota.db"))


async def test_sigterm_answers_every_parked_call_and_ends(server: Server, http: httpx.AsyncClient) -> None:
    server.start_and_wait()
    member_id = await a_stable_member(http, "heartbeats")
    await a_stable_member(http, "joins")
    beat = {"member_id": member_id, "generation_id": 1, "wait_ms": 10_000}
    heartbeat = asyncio.create_task(post(http, "heartbeats", "heartbeat", **beat))
    # The member that is there does not rejoin, so that this join stays parked.
    join = asyncio.create_task(joined(http, "joins", wait_ms=20_000))
    stream = asyncio.create_task(events_until_the_end(http, "heartbeats"))
    await until_parked(http, calls=2, streams=1)

    server.process.send(signal.SIGTERM)
    answers = await asyncio.gather(heartbeat, join)
    reported = await stream

    for answer in answers:
        assert (answer.status_code, answer.json()["code"]) == (503, "COORDINATOR_NOT_AVAILABLE")
        assert answer.headers["retry-after"]
    assert "event: server-drain" in reported
    assert await asyncio.to_thread(server.process.wait_for_exit) == 0


@pytest.mark.thorough
async def test_while_draining_it_is_unready_and_a_second_signal_ends(
    processes: Processes, tmp_path: Path, http: httpx.AsyncClient
) -> None:
    options = ("--store", f"sqlite:///{tmp_path / 'rota.db'}", "--http", "127.0.0.1:0", "--drain-delay-ms", "600000")
    serving = processes.rota("serve", *options)
    url = serving.wait_for_line(r'"url": "(http://[^"]+)"')[1]
    serving.wait_for_url(f"{url}/readyz")

    serving.send(signal.SIGTERM)
    serving.wait_for_line("draining")
    refused = await http.get(f"{url}/readyz")
    serving.send(signal.SIGTERM)

    assert (refused.status_code, refused.json()["detail"]) == (503, "draining")
    assert serving.wait_for_exit() == 128 + signal.SIGTERM


@pytest.mark.thorough
def test_a_second_server_on_a_file_refuses_to_start(server: Server, processes: Processes) -> None:
    server.start_and_wait()

    second = processes.rota("serve", "--store", server.store_url, "--http", "127.0.0.1:0")

    assert_refuses(second, "another service is using this store")
    assert httpx.get(f"{server.url}/readyz", trust_env=False).is_success


@pytest.mark.slow
def test_a_store_with_another_number_of_shards_is_refused(server: Server, processes: Processes) -> None:
    server.start_and_wait()
    server.process.terminate()

    second = processes.rota("serve", "--store", server.store_url, "--http", "127.0.0.1:0", "--shard-count", "5")

    assert_refuses(second, "the store was made with shard_count 4, not 5")


@pytest.mark.thorough
def test_a_postgres_without_schema_is_rejected_with_the_command(processes: Processes, postgres_dsn: str) -> None:
    serving = processes.rota("serve", "--store", postgres_dsn, "--http", "127.0.0.1:0")

    assert_refuses(serving, "rota db upgrade")


def assert_refuses(process: Process, reason: str) -> None:
    """It ends with 1 and one line that says why."""
    assert process.wait_for_exit() == 1
    lines = [line for line in process.output().splitlines() if not line.startswith("{")]
    assert len(lines) == 1, lines
    assert lines[0].startswith("rota: ")
    assert reason in lines[0]


# --- calls -------------------------------------------------------------------------------------------


async def post(http: httpx.AsyncClient, group_id: str, operation: str, **body: Any) -> httpx.Response:
    return await http.post(f"/v1/namespaces/default/groups/{group_id}/{operation}", json=body)


async def joined(http: httpx.AsyncClient, group_id: str, *, wait_ms: int) -> httpx.Response:
    """Both steps of a newcomer's join; the second answer."""
    body = {"protocol_type": "worker", "protocols": [{"name": "plain"}], "wait_ms": wait_ms}
    required = await post(http, group_id, "join", **body)
    assert required.status_code == 428, required.text
    return await post(http, group_id, "join", **body, member_id=required.json()["member_id"])


async def a_stable_member(http: httpx.AsyncClient, group_id: str) -> str:
    """The only member of a group that is Stable in generation 1."""
    answer = await joined(http, group_id, wait_ms=10_000)
    assert answer.json()["generation_id"] == 1, answer.text
    member_id: str = answer.json()["member_id"]
    synced = await post(http, group_id, "sync", member_id=member_id, generation_id=1)
    assert synced.json()["outcome"] == "synced", synced.text
    return member_id


async def events_until_the_end(http: httpx.AsyncClient, group_id: str) -> str:
    """All that an event stream says until the server ends it."""
    async with http.stream("GET", f"/v1/namespaces/default/groups/{group_id}/events") as response:
        return "".join([text async for text in response.aiter_text()])


async def until_parked(http: httpx.AsyncClient, *, calls: int, streams: int) -> None:
    """Return once the server says that so many calls are parked and so many event streams open."""
    async with asyncio.timeout(DEADLINE_S):
        while (await gauge(http, "rota_waiters"), await gauge(http, "rota_event_streams")) != (calls, streams):
            pass


async def gauge(http: httpx.AsyncClient, name: str) -> float:
    """A metric, summed over its labels. Asking is a round trip, which leaves the others their time."""
    lines = (await http.get("/metrics")).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if re.match(rf"{name}[ {{]", line))


@pytest.mark.thorough
def test_a_server_outlives_a_refused_login_of_postgres(
    processes: Processes, postgres_server: PostgresServer, postgres_dsn: str
) -> None:
    """A failover's window, a rotated password: at the start it would be an error to exit with."""
    postgres_server.execute("DROP ROLE IF EXISTS app")
    postgres_server.execute("CREATE ROLE app LOGIN SUPERUSER")
    store = postgres_dsn.replace("postgres@", "app@")
    assert processes.rota("db", "upgrade", "--store", store).wait_for_exit() == 0
    server = Server(processes, store, lease_ms=1_000)
    server.start_and_wait()

    postgres_server.execute("ALTER ROLE app NOLOGIN")
    postgres_server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'")
    server.process.wait_for_line("the store refuses us: role .app. is not permitted to log in")
    server.process.wait_until(lambda: _readiness(server) == 503, "a server that is not ready")
    postgres_server.execute("ALTER ROLE app LOGIN")

    server.process.wait_for_url(f"{server.url}/readyz")
    assert server.process.terminate() == 0
    postgres_server.drop_database(postgres_dsn.rpartition("/")[2])
    postgres_server.execute("DROP ROLE app")


@pytest.mark.thorough
def test_a_server_whose_file_was_deleted_makes_no_empty_store(processes: Processes, tmp_path: Path) -> None:
    server = Server(processes, f"sqlite:///{tmp_path / 'rota.db'}", lease_ms=1_000)
    server.start_and_wait()

    reason = "was deleted or replaced while this service used it"
    (tmp_path / "rota.db").unlink()
    with httpx.Client(base_url=server.url, timeout=DEADLINE_S, trust_env=False) as client:
        topic = client.put("/v1/namespaces/default/topics/t", json={"partitions": 3})
        # A moment before, a shard was dropped, and the reason is not there yet.
        server.process.wait_until(lambda: reason in client.get("/readyz").text, "the reason why it is not ready")
        is_ready = client.get("/readyz").status_code
    ended = server.process.terminate()
    again = server.start()

    assert topic.status_code == 503
    assert is_ready == 503
    assert (ended, again.wait_for_exit()) == (0, 1)
    assert "and its file is gone. Restore it" in again.output()
    assert not (tmp_path / "rota.db").exists()


@pytest.mark.thorough
def test_a_full_disk_is_unavailability_until_there_is_room(server: Server, tmp_path: Path) -> None:
    server.start_and_wait()
    process = psutil.Process(server.process.pid)
    topics = [f"/v1/namespaces/default/topics/t{number}" for number in range(200)]
    attributes = {"attributes": {"note": "x" * 500}, "partitions": 3}

    with httpx.Client(base_url=server.url, timeout=DEADLINE_S, trust_env=False) as client:
        room = (tmp_path / "rota.db-wal").stat().st_size + 20_000
        process.rlimit(psutil.RLIMIT_FSIZE, (room, psutil.RLIM_INFINITY))
        codes = [client.put(topic, json=attributes).status_code for topic in topics]
        process.rlimit(psutil.RLIMIT_FSIZE, (psutil.RLIM_INFINITY,) * 2)
        server.process.wait_for_url(f"{server.url}/readyz")
        again = [client.put(topic, json=attributes).status_code for topic in topics]

    assert set(codes) >= {503}
    assert set(codes) <= {200, 201, 503}
    assert set(again) <= {200, 201}
    assert server.process.terminate() == 0


def _readiness(server: Server) -> int:
    return httpx.get(f"{server.url}/readyz", timeout=DEADLINE_S, trust_env=False).status_code
