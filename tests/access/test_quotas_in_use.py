"""Quotas on a running service: a noisy namespace is held back, and its neighbours and its heartbeats are not."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import httpx
import pytest

from rota.core.access.quotas import BURST_S
from tests.access.guarded import Service, a_join_body, bearer, parked_in
from tests.grpc.clients import Refused, stub

pytestmark = pytest.mark.asyncio(loop_scope="module")
RATE = 2
"""So few a second that a machine on which 300 requests take a minute refuses some, too."""
GUARDED_BY = f"""
[[quotas]]
namespace = "noisy"
requests_per_s = {RATE}

[[quotas]]
namespace = "small"
max_groups = 1
max_members = 2
max_parked = 1

"""


@pytest.fixture(scope="module")
def headers(service: Service) -> dict[str, str]:
    return bearer(service.secrets.a_token("everywhere", "operator", "*"))


def path(namespace: str, group_id: str, call: str = "") -> str:
    return f"/v1/namespaces/{namespace}/groups/{group_id}{call and '/' + call}"


async def join(service: Service, headers: dict[str, str], namespace: str, group_id: str, **more: Any) -> httpx.Response:
    body = {**a_join_body(), **more}
    return await service.http.post(path(namespace, group_id, "join"), json=body, headers=headers)


async def test_a_noisy_namespace_is_throttled_alone(service: Service, headers: dict[str, str]) -> None:
    member = (await join(service, headers, "noisy", "g", group_instance_id="i1")).json()["member_id"]
    beat = {"member_id": member, "generation_id": 1}

    noise = [join(service, headers, "noisy", f"g{n}") for n in range(300)]
    quiet = [join(service, headers, "quiet", f"g{n}") for n in range(30)]
    began_s = asyncio.get_running_loop().time()
    answers = await asyncio.gather(*noise, *quiet)
    took_s = asyncio.get_running_loop().time() - began_s
    statuses = [answer.status_code for answer in answers]
    heartbeat = await service.http.post(path("noisy", "g", "heartbeat"), json=beat, headers=headers)

    counted = Counter(statuses[:300])
    assert 0 < counted[428] <= RATE * (BURST_S + took_s) + 1
    assert counted[429] + counted[428] == 300
    assert set(statuses[300:]) == {428}
    assert heartbeat.status_code != 429
    refusal = next(answer for answer in answers if answer.status_code == 429)
    assert refusal.headers["retry-after"] == "1"
    assert refusal.json()["code"] == "THROTTLED"
    assert refusal.json()["detail"] == f"the quota of namespace noisy is exhausted: requests_per_s = {RATE}"


async def test_over_grpc_the_quota_is_a_status_of_its_own(service: Service, headers: dict[str, str]) -> None:
    metadata = tuple(headers.items())
    calls = [
        stub(service.channel).FetchOffsets(_fetch("noisy"), metadata=metadata)  # the same quota as over HTTP
        for _ in range(300)
    ]
    began_s = asyncio.get_running_loop().time()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    took_s = asyncio.get_running_loop().time() - began_s

    refused = [Refused(error) for error in outcomes if isinstance(error, BaseException)]  # type: ignore[arg-type]
    throttled = [each for each in refused if each.code == "THROTTLED"]
    assert len(throttled) >= max(1, 300 - RATE * (BURST_S + took_s) - 1)
    assert {(each.status.name, each.retry_after_s) for each in throttled} == {("RESOURCE_EXHAUSTED", 1)}


async def test_parked_calls_are_bounded_and_make_room_when_they_end(service: Service, headers: dict[str, str]) -> None:
    def wait(wait_ms: int) -> Any:
        return service.http.get(path("small", "nobodys", "leader"), params={"wait_ms": wait_ms}, headers=headers)

    first = asyncio.create_task(wait(30_000))
    await until_parked(service, 1)
    refused = await wait(1)
    first.cancel()
    await until_parked(service, 0)
    after = await wait(1)

    assert refused.json()["detail"].endswith("max_parked = 1")
    assert after.status_code != 429


async def until_parked(service: Service, calls: int) -> None:
    async with asyncio.timeout(60):
        while parked_in(service, "small") != calls:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def _fetch(namespace: str) -> Any:
    from rota.v1.coordinator_pb2 import FetchOffsetsRequest

    return FetchOffsetsRequest(namespace=namespace, group_id="g")
