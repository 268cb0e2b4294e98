"""The log of a real server has one JSON line for each transition of a group, and it says why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.ports import free_port
from tests.support.processes import Processes

pytestmark = pytest.mark.processes

SECRET = "bm9ib2R5J3MgYnVzaW5lc3M="
PROTOCOLS = [{"name": "range", "metadata": SECRET}]
JOIN = {"protocol_type": "worker", "protocols": PROTOCOLS, "group_instance_id": "pod-0", "client_id": "indexer"}


@pytest.mark.thorough
def test_each_transition_is_a_line_with_its_reason(processes: Processes, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    server = processes.rota(
        *("serve", "--store", f"sqlite:///{tmp_path / 'rota.db'}", "--http", address, "--log-format", "json"),
        env={"ROTA_LIMITS__INITIAL_REBALANCE_DELAY_MS": "0"},
    )
    server.wait_for_url(f"http://{address}/readyz")
    with httpx.Client(base_url=f"http://{address}/v1/namespaces/default/groups/indexers", trust_env=False) as client:
        joined = client.post("/join", json=JOIN).raise_for_status().json()
        ids = {"member_id": joined["member_id"], "generation_id": joined["generation_id"]}
        client.post("/sync", json=ids).raise_for_status()
        client.post("/leave", json={"members": [{"member_id": joined["member_id"], "reason": "all done"}]})
    server.wait_for_line("group is Empty")

    lines = [json.loads(line) for line in server.output().splitlines()]
    reported = [line for line in lines if "state" in line]
    assert [(line["state"], line["generation_id"]) for line in reported] == [
        ("PreparingRebalance", 0),
        ("CompletingRebalance", 1),
        ("Stable", 1),
        ("Empty", 2),
    ]
    assert all(line["level"] == "info" and line["group_id"] == "indexers" for line in reported)
    assert [why(line, joined) for line in reported] == ["joined", "joined", "joined", "left"]
    assert SECRET not in server.output()


def why(line: dict[str, Any], joined: dict[str, Any]) -> str:
    """What the member that the reason names has done."""
    assert joined["member_id"] in line["reason"], line
    return "left" if "left" in line["reason"] else "joined"
