"""A protocol type from another package: installed beside Rota, the server knows it."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.examples.packages import installed_package
from tests.processes.server import Server
from tests.support.processes import Processes

pytestmark = pytest.mark.processes

PACKAGE = Path(__file__).parents[2] / "examples" / "ring_type"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed_package(PACKAGE, tmp_path_factory.mktemp("ring"))


def joined(server: Server, instance: str, weight: float) -> httpx.Response:
    metadata = b64encode(json.dumps({"weight": weight}).encode()).decode()
    body = {
        "protocol_type": "ring",
        "protocols": [{"name": "server:arcs", "metadata": metadata}],
        "group_instance_id": instance,
    }
    return httpx.post(f"{server.url}/v1/namespaces/default/groups/ring/join", json=body, timeout=30)


def arcs(server: Server, member: dict[str, Any]) -> list[list[int]]:
    body = {"member_id": member["member_id"], "generation_id": member["generation_id"]}
    answer = httpx.post(f"{server.url}/v1/namespaces/default/groups/ring/sync", json=body, timeout=30).json()
    found: list[list[int]] = json.loads(b64decode(answer["assignment"]))["arcs"]
    return found


@pytest.mark.thorough
def test_the_server_assigns_a_type_of_another_package(
    installed: Path, processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(installed))
    server = Server(processes, f"sqlite:///{tmp_path / 'rota.db'}")
    server.start_and_wait()

    refused = joined(server, "a", 0)
    member = joined(server, "a", 2).json()

    assert (refused.status_code, refused.json()["code"]) == (400, "INVALID_REQUEST")
    assert "a weight must be above 0" in refused.json()["detail"]
    assert arcs(server, member) == [[0, 65536]]
    (described,) = httpx.get(f"{server.url}/v1/namespaces/default/groups/ring").json()["members"]
    assert described["metadata_decoded"] == {"weight": 2.0}
    assert described["assignment_decoded"] == {"arcs": [[0, 65536]]}


@pytest.mark.slow
def test_a_broken_package_keeps_the_server_from_starting(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = tmp_path / "site" / "broken-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[rota.protocol_types]\nbroken = json:dumps\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))

    server = Server(processes, f"sqlite:///{tmp_path / 'rota.db'}")
    process = server.start()

    assert process.wait_for_exit() == 1
    assert "json:dumps of entry point 'broken' is no ProtocolType" in process.output()
