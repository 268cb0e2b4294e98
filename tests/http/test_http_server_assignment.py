"""Members that only speak HTTP: the server assigns, and one call elects a leader."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode, b64encode
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.asyncio(loop_scope="module")

NAMESPACE = "/v1/namespaces/default"


async def posted(client: httpx.AsyncClient, path: str, body: dict[str, Any], status: int = 200) -> dict[str, Any]:
    response = await client.post(f"{NAMESPACE}/groups/{path}", json=body)
    assert response.status_code == status, response.text
    document: dict[str, Any] = response.json()
    return document


async def put_topic(client: httpx.AsyncClient, topic: str, partitions: int) -> None:
    response = await client.put(f"{NAMESPACE}/topics/{topic}", json={"partitions": partitions})
    assert response.status_code in (200, 201), response.text


def subscribed(topic: str, instance: str, strategy: str = "sticky") -> dict[str, Any]:
    metadata = b64encode(json.dumps({"topics": [topic]}).encode()).decode()
    protocols = [{"name": f"server:{strategy}", "metadata": metadata}]
    return {"protocol_type": "consumer", "protocols": protocols, "group_instance_id": instance}


async def share(client: httpx.AsyncClient, group: str, joined: dict[str, Any]) -> list[int]:
    """What a sync without any work of one's own brings."""
    synced = await posted(
        client, f"{group}/sync", {"member_id": joined["member_id"], "generation_id": joined["generation_id"]}
    )
    numbers: list[int] = [n for each in json.loads(b64decode(synced["assignment"]))["topics"].values() for n in each]
    return numbers


async def test_two_members_share_a_topic_without_assigning_anything(real_client: httpx.AsyncClient) -> None:
    await put_topic(real_client, "documents", 5)
    first = await posted(real_client, "thin/join", subscribed("documents", "a"))
    assert await share(real_client, "thin", first) == [0, 1, 2, 3, 4]

    second = asyncio.create_task(posted(real_client, "thin/join", subscribed("documents", "b")))
    beat = {"member_id": first["member_id"], "generation_id": 1, "wait_ms": 10_000}
    await posted(real_client, "thin/heartbeat", beat, 409)
    again = {**subscribed("documents", "a"), "member_id": first["member_id"]}
    joined = [await posted(real_client, "thin/join", again), await second]

    shares = [await share(real_client, "thin", each) for each in joined]
    assert sorted(shares[0] + shares[1]) == [0, 1, 2, 3, 4]
    assert sorted(map(len, shares)) == [2, 3]
    assert [each["skip_assignment"] for each in joined] == [True, False]


async def test_a_topic_that_grows_reaches_its_members_without_a_join(real_client: httpx.AsyncClient) -> None:
    await put_topic(real_client, "growing", 2)
    joined = await posted(real_client, "grow/join", subscribed("growing", "a"))
    assert await share(real_client, "grow", joined) == [0, 1]
    beat = {"member_id": joined["member_id"], "generation_id": 1, "wait_ms": 15_000}
    waiting = asyncio.create_task(posted(real_client, "grow/heartbeat", beat))

    await put_topic(real_client, "growing", 4)

    assert (await waiting)["generation_id"] == 2
    assert await share(real_client, "grow", {**joined, "generation_id": 2}) == [0, 1, 2, 3]


async def test_what_the_server_cannot_assign_is_a_bad_request(real_client: httpx.AsyncClient) -> None:
    problem = await posted(real_client, "odd/join", subscribed("documents", "a", "luck"), 400)

    assert problem["code"] == "INVALID_REQUEST"
    assert "server:luck" in problem["detail"]


async def test_one_call_elects_a_leader(real_client: httpx.AsyncClient) -> None:
    candidate = {"protocol_type": "leader", "protocols": [{"name": "single"}], "group_instance_id": "host-1"}

    joined = await posted(real_client, "writer/join", candidate)

    assert joined["leader_id"] == joined["member_id"]
    reported = (await real_client.get(f"{NAMESPACE}/groups/writer/leader")).json()
    assert (reported["leader_id"], reported["generation_id"], reported["state"]) == (joined["member_id"], 1, "Stable")


def candidate(instance_id: str, priority: int, *, holding: bool) -> dict[str, Any]:
    said = json.dumps({"priority": priority, "preempt_after_ms": 0, "holding": holding}).encode()
    protocols = [{"name": "single", "metadata": b64encode(said).decode()}]
    return {"protocol_type": "leader", "protocols": protocols, "group_instance_id": instance_id}
