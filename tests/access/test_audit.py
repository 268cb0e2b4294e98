"""Acts of administrators stand in the journal with subject and reason, also where another replica is the owner."""

from __future__ import annotations

from typing import Any

import pytest

from rota.v1 import admin_pb2
from tests.access.guarded import NAMESPACE, Service, a_join_body, bearer
from tests.grpc.clients import admin

pytestmark = pytest.mark.asyncio(loop_scope="module")
BASE = f"/v1/namespaces/{NAMESPACE}"


async def audited(service: Service, group_id: str) -> list[tuple[str, str, str, str]]:
    """The trail of a group, or of the namespace's topics where that is empty."""
    lines = [line for shard in range(2) for line in await service.coordinator.events(shard, 0, 1_000)]
    of_it = [line for line in lines if line.kind == "administered" and line.group_id == group_id]
    return [(e.payload["operation"], e.payload["actor"], e.payload["target"], e.reason) for e in of_it]


async def a_member(service: Service, group_id: str, headers: dict[str, str]) -> str:
    path = f"{BASE}/groups/{group_id}/join"
    named = (await service.http.post(path, json=a_join_body(), headers=headers)).json()["member_id"]
    await service.http.post(path, json={**a_join_body(), "member_id": named}, headers=headers)
    return str(named)


async def test_each_administrative_act_over_http_is_signed(service: Service) -> None:
    headers = bearer(service.secrets.a_token("operator", "operator"))
    member_id = await a_member(service, "g", headers)
    note = {**headers, "rota-note": "the%20pod%20is%20stuck"}

    await service.http.put(f"{BASE}/topics/t", json={"partitions": 3}, headers=note)
    await service.http.delete(f"{BASE}/topics/t", headers=headers)
    await service.http.delete(f"{BASE}/groups/g/members/{member_id}", headers=note)
    offsets = {"generation_id": -1, "offsets": [{"topic": "t", "partition": 0, "offset": 7}]}
    await service.http.post(f"{BASE}/groups/g/offsets", json=offsets, headers=headers)
    await service.http.delete(f"{BASE}/groups/g", params={"reason": "not needed"}, headers=headers)

    who = "token:operator"
    assert await audited(service, "g") == [
        ("LeaveGroup", who, member_id, "the pod is stuck"),
        ("CommitOffsets", who, "", ""),
        ("DeleteGroup", who, "", "not needed"),
    ]
    assert await audited(service, "") == [
        ("PutTopic", who, "t", "the pod is stuck"),
        ("DeleteTopic", who, "t", ""),
    ]


async def test_it_says_from_where_an_act_came(service: Service) -> None:
    token = service.secrets.a_token("mover", "operator")
    await service.http.put(f"{BASE}/topics/moved", json={"partitions": 1}, headers=bearer(token))
    asked = admin_pb2.DeleteTopicRequest(namespace=NAMESPACE, topic="moved")
    await admin(service.channel).DeleteTopic(asked, metadata=(("authorization", f"Bearer {token}"),))

    lines = [line for shard in range(2) for line in await service.coordinator.events(shard, 0, 1_000)]

    origins = [line.payload["origin"] for line in lines if line.payload.get("target") == "moved"]
    assert origins == ["127.0.0.1", "127.0.0.1"]


async def test_nobody_can_sign_with_another_name(service: Service) -> None:
    headers = bearer(service.secrets.a_token("liar", "operator"))
    forged: dict[str, Any] = {"partitions": 3, "act": {"actor": "alice"}, "actor": "alice"}

    refused = await service.http.put(f"{BASE}/topics/forged", json=forged, headers=headers)
    if refused.is_success:
        assert (await audited(service, ""))[-1][1] == "token:liar"
    else:
        assert refused.status_code == 400
