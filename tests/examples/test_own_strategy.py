"""A strategy from another package, with user data: assigned by the server, and by a leader of the SDK."""

from __future__ import annotations

import asyncio
import importlib
import json
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import httpx
import pytest

import rota
from rota.core.assignors import TopicPartition, register_strategy
from tests.examples.packages import installed_package
from tests.processes.server import Server
from tests.support.processes import Processes
from tests.support.strategies import registered_for_one_test

pytestmark = [pytest.mark.processes, pytest.mark.thorough]

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed_package(EXAMPLES / "own_strategy", tmp_path_factory.mktemp("warm"))


@pytest.fixture
def server(installed: Path, processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setenv("PYTHONPATH", str(installed))
    server = Server(processes, f"sqlite:///{tmp_path / 'rota.db'}")
    server.start_and_wait()
    httpx.put(f"{server.url}/v1/namespaces/default/topics/orders", json={"partitions": 4}).raise_for_status()
    return server


def metadata(cached: list[int]) -> bytes:
    own = b64encode(json.dumps({"cached": {"orders": cached}}).encode()).decode()
    return json.dumps({"topics": ["orders"], "user_data": {"version": 1, "data": own}}).encode()


def called(server: Server, call: str, **body: Any) -> dict[str, Any]:
    answer = httpx.post(f"{server.url}/v1/namespaces/default/groups/g/{call}", json=body, timeout=30)
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


def test_the_server_assigns_by_a_strategy_of_a_package(server: Server) -> None:
    protocols = [{"name": "server:warm-cache", "metadata": b64encode(metadata([1, 3])).decode()}]
    joined = called(server, "join", protocol_type="consumer", protocols=protocols, group_instance_id="a")
    who = {"member_id": joined["member_id"], "generation_id": joined["generation_id"], "group_instance_id": "a"}
    assignment = json.loads(b64decode(called(server, "sync", **who)["assignment"]))

    assert assignment["topics"] == {"orders": [0, 1, 2, 3]}
    assert assignment["user_data"]["version"] == 1
    assert json.loads(b64decode(assignment["user_data"]["data"])) == {"copy_from": {}}


async def test_leaders_of_the_sdk_assign_by_it(
    server: Server, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(installed))
    warm_cache = importlib.import_module("rota_warm_cache")
    warm = warm_cache.WarmCache()
    warm.cached = {TopicPartition("orders", 2)}
    with registered_for_one_test():
        register_strategy(warm)
        async with rota.connect(server.url) as client, asyncio.timeout(30):
            async with client.consumer("h", "orders", "warm-cache") as consumer:
                share = await consumer.wait_assigned()
                assert [place.partition for place in share.share] == [0, 1, 2, 3]
