"""Several members' heartbeats in one message: on every transport each of them gets the same answer."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import grpc
import httpx
import pytest

from rota.client.transports.addresses import transport_to
from rota.protocol.messages import JoinGroup, JoinReply, Protocol, SyncGroup
from rota.v1 import coordinator_pb2 as pb
from tests.contracts.transports import OTHERS, REFERENCE, a_door, namespaces
from tests.grpc.clients import SessionClient, stub

NAMESPACE = next(namespaces())
G = (NAMESPACE, "g")
TIMEOUT_MS = 30_000
CURRENT = ("NONE", 1, "Stable")


async def a_member(url: str) -> str:
    """The id of the only member of a Stable group, in its first generation."""
    transport = transport_to([url], None)
    try:
        join = JoinGroup(*G, "worker", (Protocol("p"),), 30_000, 30_000, group_instance_id="i", wait_ms=5_000)
        joined = (await transport.send(join, timeout_ms=TIMEOUT_MS)).reply
        assert isinstance(joined, JoinReply)
        await transport.send(SyncGroup(*G, joined.member_id, 1), timeout_ms=TIMEOUT_MS)
        return joined.member_id
    finally:
        await transport.close()


async def reported(door: str, beats: list[tuple[str, int, str | None]]) -> list[tuple[str, int, str]]:
    """The answer to each: its error, the group's generation and state. The member is called `me`."""
    async with a_door(door) as url:
        me = await a_member(url)
        named: list[dict[str, Any]] = [
            {"member_id": me if member == "me" else member, "generation_id": generation, "group_instance_id": instance}
            for member, generation, instance in beats
        ]
        if door.startswith("http"):
            return await reported_over_http(url, named)
        async with grpc.aio.insecure_channel(urlsplit(url).netloc) as channel:
            members = [pb.MemberHeartbeat(**beat) for beat in named]
            group = pb.GroupHeartbeat(namespace=NAMESPACE, group_id="g", members=members)
            request = pb.HeartbeatManyRequest(groups=[group])
            if door.startswith("stream"):
                return reported_in(await reported_over_a_stream(channel, request), named)
            return reported_in(await stub(channel).HeartbeatMany(request), named)


async def reported_over_http(url: str, beats: list[dict[str, Any]]) -> list[tuple[str, int, str]]:
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        answer = await client.post(f"/v1/namespaces/{NAMESPACE}/groups/g/heartbeat", json={"members": beats})
    assert [each["member_id"] for each in answer.json()["members"]] == [beat["member_id"] for beat in beats]
    return [(each["error"], each["generation_id"], each["state"]) for each in answer.json()["members"]]


async def reported_over_a_stream(channel: grpc.aio.Channel, request: pb.HeartbeatManyRequest) -> Any:
    session = SessionClient(channel)
    try:
        return (await session.ask(heartbeat=request)).heartbeat
    finally:
        await session.close()


def reported_in(response: Any, beats: list[dict[str, Any]]) -> list[tuple[str, int, str]]:
    """GRPC names those that are refused; all others have the group's generation and state."""
    (group,) = response.groups
    assert group.error == "NONE"
    refused = {each.member_id: each.error for each in group.errors}
    return [(refused.get(beat["member_id"], "NONE"), group.generation_id, group.state) for beat in beats]


@pytest.mark.parametrize("door", [REFERENCE, *OTHERS])
async def test_members_that_live_learn_where_the_group_stands(door: str) -> None:
    assert await reported(door, [("me", 1, None), ("me", 1, "i")]) == [CURRENT, CURRENT]


@pytest.mark.parametrize("door", [REFERENCE, *OTHERS])
async def test_those_that_are_refused_spoil_nothing_for_the_others(door: str) -> None:
    answers = await reported(door, [("me", 1, None), ("a stranger", 1, None), ("another", 1, "i")])

    assert answers[0] == CURRENT
    assert [error for error, *_ in answers[1:]] == ["UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID"]


@pytest.mark.parametrize("door", [REFERENCE, *OTHERS])
async def test_an_old_generation_is_reported_as_old(door: str) -> None:
    ((error, *_),) = await reported(door, [("me", 0, None)])

    assert error == "ILLEGAL_GENERATION"
