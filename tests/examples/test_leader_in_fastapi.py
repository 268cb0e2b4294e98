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

pytestmark = pytest.mark.processes

DEADLINE_S = 60.0


def start(processes: Processes, server: Server) -> tuple[Process, str]:
    port = free_port()
    command = (sys.executable, "-m", "uvicorn", "examples.leader_in_fastapi.app:app", "--port", str(port))
    environment = {"ROTA_URL": server.url, "ROTA_SESSION_TIMEOUT_MS": "1000"}
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


def test_one_replica_leads_and_another_takes_over_when_it_is_killed(processes: Processes, server: Server) -> None:
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
