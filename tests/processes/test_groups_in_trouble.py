"""Of a thousand groups on a real server, those in trouble are the first that an operator sees."""

from __future__ import annotations

import json
import re
from pathlib import Path
from time import monotonic

import httpx
import pytest

from tests.processes.server import Server
from tests.support.processes import Processes

pytestmark = pytest.mark.processes

CALM = 998
DEADLINE_S = 60.0
WORKER = {"protocol_type": "worker", "protocols": [{"name": "own"}], "session_timeout_ms": 600_000}


def joined(http: httpx.Client, group_id: str, **more: object) -> str:
    body = {**WORKER, "rebalance_timeout_ms": 600_000, **more}
    member_id = str(http.post(f"groups/{group_id}/join", json=body).json()["member_id"])
    http.post(f"groups/{group_id}/join", json={**body, "member_id": member_id}).raise_for_status()
    return member_id


def assigned(http: httpx.Client, group_id: str, member_id: str, times: int = 1) -> None:
    """The leader assigns its generation, and then anew: each time the group has a new generation."""
    for number in range(times):
        share = {"member_id": member_id, "assignment": f"{number:04}"}
        body = {"member_id": member_id, "generation_id": max(1, number), "assignments": [share]}
        http.post(f"groups/{group_id}/sync", json=body).raise_for_status()


@pytest.mark.thorough
def test_a_stuck_and_a_flapping_group_are_the_first_of_a_thousand(processes: Processes, tmp_path: Path) -> None:
    server = Server(processes, f"sqlite:///{tmp_path / 'rota.db'}", "--critical-groups", "default/z-stuck")
    server.start_and_wait()
    with httpx.Client(base_url=f"{server.url}/v1/namespaces/default/", timeout=DEADLINE_S, trust_env=False) as http:
        dead = joined(http, "z-stuck", client_id="dead")
        assigned(http, "z-stuck", dead)
        joined(http, "z-stuck", client_id="newcomer", wait_ms=0)
        for number in range(CALM):
            offset = {"topic": "docs", "partition": 0, "offset": 7}
            http.post(f"groups/calm-{number:03}/offsets", json={"offsets": [offset]}).raise_for_status()
        crazy = joined(http, "z-flaps", client_id="crazy")
        assigned(http, "z-flaps", crazy, times=13)
        for kind in ("stuck", "flapping"):
            wait_for(http, f"{server.url}/metrics", rf'rota_troubles\{{kind="{kind}"\}} 1\.0')
        wait_for(http, f"{server.url}/metrics", r'rota_critical_group_troubles\{group="default/z-stuck"\} 1\.0')

        overview = http.get(f"{server.url}/").text

    top = processes.rota("--url", server.url, "top", "-n", "2", "-o", "json")
    assert top.wait_for_exit() == 0
    rows = json.loads(top.output())
    assert [row["group_id"] for row in rows] == ["z-stuck", "z-flaps"]
    assert [row["next"] for row in rows] == [
        f"rota groups remove-member z-stuck {dead}",
        "rota groups history z-flaps --since 10m",
    ]
    assert f"2 of {CALM + 2} groups need attention" in overview
    assert re.findall(r'row-link" href="/groups/default/([\w-]+)"', overview)[:2] == ["z-stuck", "z-flaps"]


def wait_for(http: httpx.Client, url: str, pattern: str) -> None:
    give_up_at = monotonic() + DEADLINE_S
    while not re.search(pattern, http.get(url).text):
        assert monotonic() < give_up_at, f"{url} does not say {pattern}"
