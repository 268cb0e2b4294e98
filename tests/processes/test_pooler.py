"""Replicas with their Postgres behind PgBouncer in transaction mode: they start, take over and stop like any others."""

from __future__ import annotations

import httpx
import pytest

from tests.processes.server import Server
from tests.support.pgbouncer import PgBouncer
from tests.support.processes import Processes

pytestmark = pytest.mark.processes

LEASE_MS = 1_000
GROUP = "g"


@pytest.fixture
def store(processes: Processes, pgbouncer: PgBouncer, postgres_dsn: str) -> str:
    url = pgbouncer.through(postgres_dsn)
    assert processes.rota("db", "upgrade", "--store", url).wait_for_exit() == 0
    return url


def call(server: Server, what: str, **body: object) -> httpx.Response:
    """Ask again for as long as the answer is that there will be an owner soon."""
    with httpx.Client(base_url=server.url, timeout=30, trust_env=False) as client:
        answers: list[httpx.Response] = []

        def answered() -> bool:
            answers.append(client.post(f"/v1/namespaces/default/groups/{GROUP}/{what}", json=body))
            return answers[-1].status_code != httpx.codes.SERVICE_UNAVAILABLE

        server.process.wait_until(answered, "an owner")
    return answers[-1].raise_for_status()


def a_stable_member(server: Server) -> dict[str, object]:
    """The heartbeat of a member that is alone in its group."""
    protocols = [{"name": "p", "metadata": ""}]
    join = {"protocol_type": "worker", "protocols": protocols, "group_instance_id": "w", "session_timeout_ms": 30_000}
    member = call(server, "join", **join).json()
    beat = {"member_id": member["member_id"], "generation_id": member["generation_id"]}
    call(server, "sync", **beat)
    return beat


def take_owner(servers: list[Server]) -> Server:
    """Remove the one that has the group from the list."""
    url = f"{servers[0].url}/v1/namespaces/default/groups/{GROUP}/coordinator"
    address = httpx.get(url, timeout=30, trust_env=False).json()["address"]
    return servers.pop([server.url for server in servers].index(address))


@pytest.mark.slow
def test_shards_of_killed_and_stopped_replicas_move_unchanged(processes: Processes, store: str) -> None:
    servers = [Server(processes, store, lease_ms=LEASE_MS) for _ in range(3)]
    for server in servers:
        server.start()
    for server in servers:
        server.process.wait_for_url(f"{server.url}/readyz")
    beat = a_stable_member(servers[0])

    take_owner(servers).process.kill9()
    reported = [call(server, "heartbeat", **beat).json() for server in servers]
    assert take_owner(servers).process.terminate() == 0
    reported.append(call(servers[0], "heartbeat", **beat).json())

    assert [(each["generation_id"], each["state"]) for each in reported] == 3 * [(1, "Stable")]
    assert len({each["epoch"] for each in reported}) == 2
    assert servers[0].process.terminate() == 0
    verify = processes.rota("db", "verify", "--store", store)
    assert verify.wait_for_exit() == 0, verify.output()
    assert "differences:  0" in verify.output()
