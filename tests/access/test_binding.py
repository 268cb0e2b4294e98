"""Members that are tied to their pods: a pod's token joins and heartbeats in its own name only, on every road."""

from __future__ import annotations

from typing import Any

import pytest

from tests.access.guarded import NAMESPACE, Service, a_join_body, bearer
from tests.access.issuers import service_account

pytestmark = pytest.mark.asyncio(loop_scope="module")
GROUP = f"/v1/namespaces/{NAMESPACE}/groups/g"

GUARDED_BY = "bind_members_to_pods = true\n"


def of_pod(service: Service, pod: str) -> dict[str, str]:
    return bearer(service.secrets.cluster.token(**service_account("team-a", "worker", pod)))


async def test_a_pod_joins_in_its_own_name_and_no_other(service: Service) -> None:
    headers = of_pod(service, "w-0")

    own = await service.http.post(f"{GROUP}/join", json=a_join_body("w-0"), headers=headers)
    others = await service.http.post(f"{GROUP}/join", json=a_join_body("w-1"), headers=headers)
    static = {**a_join_body("w-0"), "group_instance_id": "w-1"}
    posing = await service.http.post(f"{GROUP}/join", json=static, headers=headers)

    assert own.json()["code"] == "MEMBER_ID_REQUIRED"
    assert [answer.status_code for answer in (others, posing)] == [403, 403]
    assert others.json()["detail"] == "sa:team-a/worker: client_id must be w-0, the pod that the token is for"


async def test_it_cannot_keep_alive_or_drop_another_pods_member(service: Service) -> None:
    mine, theirs = of_pod(service, "w-0"), of_pod(service, "w-1")
    static = {**a_join_body("w-1"), "group_instance_id": "w-1"}
    member_id = (await service.http.post(f"{GROUP}/join", json=static, headers=theirs)).json()["member_id"]
    beat = {"member_id": member_id, "generation_id": 1}
    several: dict[str, Any] = {"members": [beat]}

    heartbeat = await service.http.post(f"{GROUP}/heartbeat", json=beat, headers=mine)
    batch = await service.http.post(f"{GROUP}/heartbeat", json=several, headers=mine)
    leave = await service.http.post(f"{GROUP}/leave", json={"members": [{"member_id": member_id}]}, headers=mine)

    assert [heartbeat.status_code, leave.status_code] == [403, 403]
    assert batch.json()["members"][0]["error"] == "GROUP_AUTHORIZATION_FAILED"
