"""A replica that does not own a group names the owner: when it is asked for it, and where it forwards nothing."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import grpc
import httpx
import pytest

from rota.v1 import admin_pb2
from rota.v1 import coordinator_pb2 as pb
from tests.contracts.transports import OWNER, REPLICAS, a_door, namespaces
from tests.grpc.clients import admin, refused, stub

NAMESPACE = next(namespaces())
G: dict[str, Any] = {"namespace": NAMESPACE, "group_id": "g"}
PATH = f"/v1/namespaces/{NAMESPACE}/groups/g"


@pytest.mark.parametrize("how", ["forwarded", "refused"])
async def test_a_request_for_the_coordinator_gets_the_owner(how: str) -> None:
    async with a_door(f"http {how}") as url, httpx.AsyncClient(base_url=url, trust_env=False) as client:
        over_http = (await client.get(f"{PATH}/coordinator")).json()
    async with a_door(f"grpc {how}") as url, grpc.aio.insecure_channel(urlsplit(url).netloc) as channel:
        over_grpc = await stub(channel).FindCoordinator(pb.FindCoordinatorRequest(**G))

    for name in ("shard_id", "replica_id", "address", "reported_by"):
        assert over_http[name] == getattr(over_grpc, name)
    assert (over_grpc.replica_id, over_grpc.address) == (OWNER, f"http://{OWNER}")
    assert over_grpc.reported_by == REPLICAS[0]


async def test_without_forwarding_http_misdirects_and_names_the_owner() -> None:
    async with a_door("http refused") as url, httpx.AsyncClient(base_url=url, trust_env=False) as client:
        answer = await client.get(PATH)

    assert (answer.status_code, answer.json()["code"]) == (421, "NOT_COORDINATOR")
    assert answer.json()["owner"] == f"http://{OWNER}"


async def test_without_forwarding_grpc_names_the_owner() -> None:
    async with a_door("grpc refused") as url, grpc.aio.insecure_channel(urlsplit(url).netloc) as channel:
        failed = await refused(admin(channel).DescribeGroup(admin_pb2.DescribeGroupRequest(**G)))

    assert (failed.status, failed.code) == (grpc.StatusCode.UNAVAILABLE, "NOT_COORDINATOR")
    assert failed.metadata["owner"] == f"http://{OWNER}"
