"""Two shell scripts with curl and nothing else elect a leader, and the other follows when it ends or is killed."""

from __future__ import annotations

import signal

import pytest

from tests.examples.conftest import ROOT
from tests.processes.server import Server
from tests.support.processes import Process, Processes

pytestmark = pytest.mark.processes


def start(processes: Processes, server: Server) -> Process:
    environment = {"ROTA_URL": server.url, "ROTA_SESSION_TIMEOUT_MS": "1000", "NO_PROXY": "*"}
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


def test_a_killed_script_is_followed_within_its_session(processes: Processes, server: Server) -> None:
    first = start(processes, server)
    generation(first, "leads")
    second = start(processes, server)
    together = generation(second, "follows")

    first.kill9()

    assert generation(second, "leads") > together
