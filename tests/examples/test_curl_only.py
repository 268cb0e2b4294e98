"""Two shell scripts with curl and nothing else elect a leader, and the other follows when it ends or is killed."""

from __future__ import annotations

import signal

import httpx
import pytest

from tests.examples.conftest import ROOT
from tests.processes.server import Server
from tests.support.processes import Process, Processes

pytestmark = [pytest.mark.processes, pytest.mark.thorough]

LESS_THAN_THE_CALL_S = 10.0


def start(processes: Processes, server: Server, session_ms: int = 1_000) -> Process:
    environment = {"ROTA_URL": server.url, "ROTA_SESSION_TIMEOUT_MS": str(session_ms), "NO_PROXY": "*"}
    return processes.start("sh", ROOT / "examples/curl_only/lead.sh", "nightly", env=environment)


def generation(process: Process, line: str) -> int:
    return int(process.wait_for_line(rf"^{line} (\d+)$")[1])


def test_the_script_leads_follows_and_takes_over(processes: Processes, server: Server) -> None:
    first = start(processes, server)
    alone = generation(first, "leads")
    second = start(processes, server)
    together = generation(second, "follows")

    first.send(signal.SIGTERM)
    taken_over = generation(second, "leads")

    assert alone < together < taken_over


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_script_that_waits_in_a_call_leaves_at_a_signal(
    processes: Processes, server: Server, number: signal.Signals
) -> None:
    """Its heartbeat would wait for 20 s."""
    script = start(processes, server, session_ms=60_000)
    generation(script, "leads")

    script.send(number)

    assert script.wait_for_exit(LESS_THAN_THE_CALL_S) == 0
    group = httpx.get(f"{server.url}/v1/namespaces/default/groups/nightly", trust_env=False, timeout=30).json()
    assert (group["state"], group["members"]) == ("Empty", [])


@pytest.mark.slow
def test_a_killed_script_is_followed_within_its_session(processes: Processes, server: Server) -> None:
    first = start(processes, server)
    generation(first, "leads")
    second = start(processes, server)
    together = generation(second, "follows")

    first.kill9()

    assert generation(second, "leads") > together
