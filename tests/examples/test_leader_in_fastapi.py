"""Two replicas of a FastAPI service: one leads, and when it is killed the other does, with a higher token."""

from __future__ import annotations

import signal
import sys
import time
from typing import Any

import httpx
import pytest

from tests.examples.conftest import ROOT
from tests.processes.server import Server
from tests.support.ports import free_port
from tests.support.processes import Process, Processes

pytestmark = [pytest.mark.processes, pytest.mark.thorough]

DEADLINE_S = 60.0
LONG_SESSION_MS = 120_000


def start(
    processes: Processes,
    server: Server,
    app: str = "examples.leader_in_fastapi.app:app",
    session_ms: int = 1_000,
    path: str = "",
) -> tuple[Process, str]:
    port = free_port()
    command = (sys.executable, "-m", "uvicorn", app, "--port", str(port))
    environment = {"ROTA_URL": server.url + path, "ROTA_SESSION_TIMEOUT_MS": str(session_ms)}
    process = processes.start(*command, env=environment, cwd=ROOT)
    url = f"http://127.0.0.1:{port}"
    process.wait_for_url(f"{url}/healthz")
    return process, url


def leads(url: str) -> dict[str, Any] | None:
    answer = httpx.get(f"{url}/leader", trust_env=False, timeout=DEADLINE_S)
    assert answer.status_code in (200, 503)
    return answer.json() if answer.status_code == 200 else None


def until_it_leads(url: str) -> dict[str, Any]:
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        found = leads(url)
        if found is not None and found["rounds"]:
            return found
    raise AssertionError(f"{url} was never elected")


@pytest.mark.thorough
def test_one_replica_leads_and_another_after_its_kill(processes: Processes, server: Server) -> None:
    first, first_url = start(processes, server)
    before = until_it_leads(first_url)
    second, second_url = start(processes, server)
    beside = leads(second_url)

    first.kill9()
    after = until_it_leads(second_url)

    assert beside is None
    assert after["token"] > before["token"]
    # uvicorn ends in order and then passes the signal on.
    assert second.terminate() in (0, -signal.SIGTERM)


def test_a_replica_that_is_ended_hands_over_at_once(processes: Processes, server: Server) -> None:
    """Its session is longer than the test may take."""
    first, first_url = start(processes, server, session_ms=LONG_SESSION_MS)
    until_it_leads(first_url)
    _, second_url = start(processes, server, session_ms=LONG_SESSION_MS)
    until(second_url, "another replica leads")

    assert first.terminate() in (0, -signal.SIGTERM)

    assert until_it_leads(second_url)["token"]


@pytest.mark.thorough
def test_a_replica_without_a_coordinator_says_so(processes: Processes, server: Server) -> None:
    server.process.kill9()

    _, url = start(processes, server)

    until(url, "the coordinator does not serve this replica: ")


def until(url: str, standing: str) -> None:
    """Wait until `/leader` is 503 for this reason; `/healthz` is 200 all the same."""
    give_up_at = time.monotonic() + DEADLINE_S
    while True:
        answer = httpx.get(f"{url}/leader", trust_env=False, timeout=DEADLINE_S)
        reason = answer.json().get("detail", "")
        if answer.status_code == 503 and reason.startswith(standing):
            break
        assert time.monotonic() < give_up_at, reason
    health = httpx.get(f"{url}/healthz", trust_env=False)
    assert (health.status_code, set(health.json())) == (200, {"status", "billing"})
