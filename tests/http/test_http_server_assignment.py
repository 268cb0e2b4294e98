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


async def test_a_large_topic_is_assigned_too(real_client: httpx.AsyncClient) -> None:
    await put_topic(real_client, "large", 10_000)

    joined = await posted(real_client, "large/join", subscribed("large", "a", "roundrobin"))

    assert len(await share(real_client, "large", joined)) == 10_000


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


def wishing(permits: int) -> dict[str, Any]:
    metadata = b64encode(json.dumps({"permits": permits}).encode()).decode()
    return {"protocol_type": "permits", "protocols": [{"name": "server:permits", "metadata": metadata}]}


async def permit(client: httpx.AsyncClient, group: str, joined: dict[str, Any]) -> dict[str, Any]:
    """What a member of a group with permits was given."""
    call = {"member_id": joined["member_id"], "generation_id": joined["generation_id"]}
    reported: dict[str, Any] = json.loads(b64decode((await posted(client, f"{group}/sync", call))["assignment"]))
    return reported


async def test_a_released_permit_passes_on_with_a_higher_token(real_client: httpx.AsyncClient) -> None:
    first = await posted(real_client, "seats/join", {**wishing(1), "group_instance_id": "a"})
    held = await permit(real_client, "seats", first)
    second = asyncio.create_task(posted(real_client, "seats/join", {**wishing(1), "group_instance_id": "b"}))
    beat = {"member_id": first["member_id"], "generation_id": 1, "wait_ms": 10_000}
    await posted(real_client, "seats/heartbeat", beat, 409)
    again = {**wishing(1), "group_instance_id": "a", "member_id": first["member_id"]}
    kept = await permit(real_client, "seats", await posted(real_client, "seats/join", again))
    waits = await permit(real_client, "seats", newcomer := await second)

    await posted(real_client, "seats/leave", {"members": [{"member_id": first["member_id"]}]})
    moved_on = {**wishing(1), "group_instance_id": "b", "member_id": newcomer["member_id"]}
    granted = await permit(real_client, "seats", await posted(real_client, "seats/join", moved_on))

    assert (held["permit"], kept["permit"], waits["permit"], granted["permit"]) == (0, 0, None, 0)
    assert (waits["place"], held["token"] == kept["token"] < granted["token"]) == (1, True)
    (member,) = (await real_client.get(f"{NAMESPACE}/groups/seats")).json()["members"]
    reported = {name: granted[name] for name in ("permit", "token", "of", "place")}
    assert (member["metadata_decoded"], member["assignment_decoded"]) == ({"permits": 1}, reported)


async def test_a_wish_that_cannot_be_read_is_a_bad_request(real_client: httpx.AsyncClient) -> None:
    problem = await posted(real_client, "seats-odd/join", {**wishing(0), "group_instance_id": "a"}, 400)

    assert '"permits" must be a number from 1' in problem["detail"]


def candidate(instance_id: str, priority: int, *, holding: bool) -> dict[str, Any]:
    said = json.dumps({"priority": priority, "preempt_after_ms": 0, "holding": holding}).encode()
    protocols = [{"name": "single", "metadata": b64encode(said).decode()}]
    return {"protocol_type": "leader", "protocols": protocols, "group_instance_id": instance_id}


async def test_a_leader_is_asked_to_hand_over_and_does(real_client: httpx.AsyncClient) -> None:
    low = await posted(real_client, "ranked/join", candidate("low", 1, holding=False))
    joining = asyncio.create_task(posted(real_client, "ranked/join", candidate("high", 9, holding=False)))
    beat = {"member_id": low["member_id"], "generation_id": 1, "wait_ms": 10_000}
    await posted(real_client, "ranked/heartbeat", beat, 409)
    again = {**candidate("low", 1, holding=True), "member_id": low["member_id"]}
    kept, high = await posted(real_client, "ranked/join", again), await joining
    assert kept["leader_id"] == high["leader_id"] == low["member_id"]

    await permit(real_client, "ranked", kept)
    reported = await posted(real_client, "ranked/heartbeat", {**beat, "generation_id": kept["generation_id"]})
    asked = await permit(real_client, "ranked", {**kept, "generation_id": reported["generation_id"]})
    assert (asked["leader_id"], asked["successor_id"]) == (low["member_id"], high["member_id"])

    knows = {"member_id": low["member_id"], "last_generation_id": reported["generation_id"]}
    handing = {**candidate("low", 1, holding=False), **knows}
    gives = asyncio.create_task(posted(real_client, "ranked/join", handing))
    follows = {**candidate("high", 9, holding=False), "member_id": high["member_id"]}
    beat = {"member_id": high["member_id"], "generation_id": reported["generation_id"], "wait_ms": 10_000}
    await posted(real_client, "ranked/heartbeat", beat, 409)
    leads = await posted(real_client, "ranked/join", follows)
    assert leads["leader_id"] == (await gives)["leader_id"] == high["member_id"]


async def test_a_frozen_group_rejects_newcomers_and_drains_no_member(real_client: httpx.AsyncClient) -> None:
    first = await posted(real_client, "ice/join", candidate("a", 0, holding=False))
    frozen = await posted(real_client, "ice/freeze", {"for_ms": 600_000, "reason": "a deploy"})
    described = (await real_client.get(f"{NAMESPACE}/groups/ice")).json()
    assert (described["frozen_until_ms"], described["frozen_reason"]) == (frozen["frozen_until_ms"], "a deploy")
    problem = await posted(real_client, "ice/join", candidate("b", 0, holding=False), 429)
    assert "frozen for" in problem["detail"]
    refused = await posted(real_client, "ice/drain", {"member_id": first["member_id"]})
    assert (refused["granted"], "frozen" in refused["why_not"]) == (False, True)

    assert (await posted(real_client, "ice/freeze", {"for_ms": 0}))["frozen_until_ms"] is None
    granted = await posted(real_client, "ice/drain", {"group_instance_id": "a", "max_leaving": 1})
    assert (granted["granted"], granted["leaving"]) == (True, [first["member_id"]])
