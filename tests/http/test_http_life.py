"""A group's life over HTTP, with the real coordinator behind it."""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from typing import Any

import httpx
import pytest

from rota.core.replica.ports import Replica
from rota.server.runtime.clock import SystemClock
from rota.server.runtime.coordinator import LocalCoordinator
from rota.testing.memory import MemoryStore

pytestmark = pytest.mark.asyncio(loop_scope="module")

NAMESPACE = "/v1/namespaces/default"


def join_body(instance: str, **more: Any) -> dict[str, Any]:
    metadata = b64encode(instance.encode()).decode()
    protocols = [{"name": "range", "metadata": metadata}]
    return {"protocol_type": "worker", "protocols": protocols, "group_instance_id": instance, **more}


async def posted(client: httpx.AsyncClient, path: str, body: dict[str, Any], status: int = 200) -> dict[str, Any]:
    response = await client.post(f"{NAMESPACE}/groups/{path}", json=body)
    assert response.status_code == status, response.text
    document: dict[str, Any] = response.json()
    return document


async def test_a_group_of_two_lives_from_first_join_to_deletion(real_client: httpx.AsyncClient) -> None:
    alone = await posted(real_client, "life/join", join_body("pod-0", member_id=""))
    assert (alone["outcome"], alone["generation_id"], alone["leader_id"]) == ("joined", 1, alone["member_id"])

    second = asyncio.create_task(posted(real_client, "life/join", join_body("pod-1")))
    heartbeat = {"member_id": alone["member_id"], "generation_id": 1, "group_instance_id": "pod-0", "wait_ms": 10_000}
    reported = await posted(real_client, "life/heartbeat", heartbeat, 409)
    assert reported["code"] == "REBALANCE_IN_PROGRESS"

    leader = await posted(real_client, "life/join", join_body("pod-0", member_id=alone["member_id"]))
    follower = await second
    assert leader["generation_id"] == follower["generation_id"] == 2
    assert [b64decode(member["metadata"]) for member in leader["members"]] == [b"pod-0", b"pod-1"]
    assert follower["members"] == []

    ids = {"pod-0": leader["member_id"], "pod-1": follower["member_id"]}
    shares = [{"member_id": ids[pod], "assignment": b64encode(pod.encode()).decode()} for pod in ids]
    waiting = asyncio.create_task(posted(real_client, "life/sync", {"member_id": ids["pod-1"], "generation_id": 2}))
    synced = await posted(
        real_client, "life/sync", {"member_id": ids["pod-0"], "generation_id": 2, "assignments": shares}
    )
    assert (b64decode(synced["assignment"]), b64decode((await waiting)["assignment"])) == (b"pod-0", b"pod-1")

    members = [{"member_id": ids[pod], "generation_id": 2} for pod in ids]
    batch = await posted(real_client, "life/heartbeat", {"members": members})
    assert [line["error"] for line in batch["members"]] == ["NONE", "NONE"]

    fence = await posted(real_client, "life/fence", {"generation_id": 1}, 412)
    assert fence["code"] == "ILLEGAL_GENERATION"
    leading = (await real_client.get(f"{NAMESPACE}/groups/life/leader")).json()
    assert (leading["leader_id"], leading["generation_id"]) == (ids["pod-0"], 2)

    progress = {"topic": "documents", "partition": 3, "offset": 12}
    commit = {"generation_id": 2, "member_id": ids["pod-1"], "offsets": [progress]}
    committed = await posted(real_client, "life/offsets", commit)
    fetched = (await real_client.get(f"{NAMESPACE}/groups/life/offsets", params={"topic": "documents/3,4"})).json()
    assert committed["partitions"] == [{"topic": "documents", "partition": 3, "error": "NONE"}]
    assert [offset["offset"] for offset in fetched["offsets"]] == [12, -1]
    assert fetched["revision"] >= committed["revision"] > synced["revision"]

    left = await posted(real_client, "life/leave", {"members": [{"group_instance_id": pod} for pod in ids]})
    assert [member["error"] for member in left["members"]] == ["NONE", "NONE"]
    assert (await real_client.delete(f"{NAMESPACE}/groups/life")).status_code == 200
    gone, never = [(await real_client.get(f"{NAMESPACE}/groups/{each}")) for each in ("life", "none")]
    assert (gone.status_code, gone.json()["code"]) == (410, "GROUP_DELETED")
    assert (never.status_code, never.json()["code"]) == (404, "GROUP_ID_NOT_FOUND")
    assert (gone.json()["remedy"], never.json()["remedy"]) == ("check name", "check name")


async def test_a_watcher_sees_the_group_form_and_resumes_where_it_left(real_client: httpx.AsyncClient) -> None:
    events = f"{NAMESPACE}/groups/watched/events"
    async with real_client.stream("GET", events) as live:
        lines = live.aiter_lines()
        assert await anext(lines) == ": ping"
        await posted(real_client, "watched/join", join_body("pod-0"))
        first = [line async for line in _until(lines, "event: generation_completed")]
        last_id = int((await anext(lines)).removeprefix("id: "))
    assert any(line.startswith("event: member_joined") for line in first)

    async with real_client.stream("GET", events, headers={"Last-Event-ID": str(last_id - 1)}) as resumed:
        again = [line async for line in _until(resumed.aiter_lines(), f"id: {last_id}")]
    assert [line for line in again if line.startswith("event: ")] == ["event: generation_completed"]


async def test_a_killed_embedded_server_serves_all_shards_when_ready() -> None:
    clock = SystemClock()
    store = MemoryStore(clock.monotonic_ms)
    await store.open(16)
    await store.register(Replica("killed", "http://127.0.0.1:1"), ttl_ms=5_000)
    async with LocalCoordinator(store, shard_count=16, clock=clock, steal=True) as coordinator:
        await coordinator.wait_until_ready()
        assert len(coordinator.owners()) == 16


async def _until(lines: Any, last: str) -> Any:
    async for line in lines:
        yield line
        if line == last:
            return
