"""Workers that are a shell script with curl share connectors and tasks by weight, also when their leader leaves."""

from __future__ import annotations

import json
import signal

import pytest

from tests.examples.conftest import ROOT
from tests.processes.server import Server
from tests.support.processes import Process, Processes

pytestmark = [pytest.mark.processes, pytest.mark.thorough]

DELAY_MS = 3_000
ALL = {"orders": [-1, 0, 1, 2, 3]}


def start(processes: Processes, server: Server, name: str) -> Process:
    environment = {
        "ROTA_URL": server.url,
        "ROTA_SESSION_TIMEOUT_MS": "30000",
        "ROTA_RETURN_DELAY_MS": str(DELAY_MS),
        "NO_PROXY": "*",
    }
    return processes.start("sh", ROOT / "examples/curl_only/work.sh", "etl", name, "orders", env=environment)


def runs(worker: Process, pattern: str) -> dict[str, list[int]]:
    """The first share of this form."""
    share: dict[str, list[int]] = json.loads(worker.wait_for_line(rf"^runs ({pattern})$")[1])
    return share


def test_workers_by_curl_take_over_from_a_leader_that_leaves(processes: Processes, server: Server) -> None:
    put = ("topics", "put", "orders", "-p", "4", "--attribute", "weights=3,1,1,1")
    assert processes.rota(*put, env={"ROTA_URL": server.url}).wait_for_exit() == 0
    leader = start(processes, server, "worker-1")
    assert runs(leader, ".*") == ALL

    other = start(processes, server, "worker-2")
    leader.wait_for_line(r'^stopped {"orders":\[0\]}$')
    assert runs(other, ".*0.*") == {"orders": [0]}, "it weighs as much as the three others together"

    leader.send(signal.SIGTERM)
    assert leader.wait_for_exit() == 0

    assert runs(other, r'{"orders":\[-1,0,1,2,3\]}') == ALL
