"""Open work when a proof runs out: streams are sent elsewhere in time, watches end, and nothing more is pushed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rota.server.access import authenticator
from rota.server.access.identity import RENEWAL_S
from rota.v1 import coordinator_pb2 as pb
from tests.access.guarded import NAMESPACE, Service, a_join_body, bearer
from tests.access.issuers import Signer
from tests.grpc.clients import SessionClient

pytestmark = pytest.mark.asyncio(loop_scope="module")
PLACE: dict[str, Any] = {"namespace": NAMESPACE, "group_id": "g"}


@pytest.mark.parametrize("issuer", ["oidc", "reviewed"])
async def test_a_stream_is_sent_elsewhere_before_its_token_runs_out(service: Service, issuer: str) -> None:
    leeway_s = 30
    signer: Signer = getattr(service.secrets, issuer)
    token = signer.token(sub="worker", lasts_s=RENEWAL_S + 1 - leeway_s)
    service.secrets.reviewer.accounts[token] = f"{NAMESPACE}:worker"
    client = SessionClient(service.channel, (("authorization", f"Bearer {token}"),))

    await client.ask(options=pb.SessionOptions())
    drained = await client.next_news("drain")

    assert drained.reason
    await client.close()


async def test_a_stream_ends_for_a_pod_that_is_gone(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authenticator, "GOOD_FOR_S", 0.0)
    token = service.secrets.reviewed.token(sub="gone")
    reviewer = service.secrets.reviewer
    reviewer.accounts[token] = f"{NAMESPACE}:worker"
    client = SessionClient(service.channel, (("authorization", f"Bearer {token}"),))
    sync = pb.SyncGroupRequest(**PLACE, member_id="nobody", generation_id=1)

    before = await client.ask(sync=sync)
    reviewer.is_away = True
    asked = len(reviewer.asked)
    async with asyncio.timeout(5):
        while len(reviewer.asked) < asked + 2:
            meanwhile = await client.ask(sync=sync)
    reviewer.is_away = False
    del reviewer.accounts[token]

    assert before.error.code == meanwhile.error.code == "UNKNOWN_MEMBER_ID"
    assert (await client.until_ended()).name == "UNAUTHENTICATED"
    await client.close()


async def test_a_caller_that_may_not_join_gets_no_event_of_the_group(service: Service) -> None:
    owner = bearer(service.secrets.a_token("owner"))
    viewer = service.secrets.a_token("viewer", "viewer")
    join = f"{path_of('g')}/join"
    body = {**a_join_body(), "group_instance_id": "i1"}
    member_id = (await service.http.post(join, json=body, headers=owner)).json()["member_id"]
    client = SessionClient(service.channel, (("authorization", f"Bearer {viewer}"),))

    refused = await client.ask(join=pb.JoinGroupRequest(**PLACE, protocol_type="worker", member_id=member_id))
    another = {**a_join_body(), "group_instance_id": "i2"}
    await service.http.post(join, json=another, headers=owner)
    await client.ask(options=pb.SessionOptions())

    assert refused.error.code == "GROUP_AUTHORIZATION_FAILED"
    assert client.news == []
    await client.close()


def path_of(group_id: str) -> str:
    return f"/v1/namespaces/{NAMESPACE}/groups/{group_id}"


@pytest.mark.parametrize("after", ["0", "earliest", "1000000"])
async def test_a_stranger_does_not_learn_where_the_journal_begins(service: Service, after: str) -> None:
    stranger = bearer(service.secrets.a_token(f"stranger {after}", "viewer", "another"))
    await a_pruned_group(service)

    async with asyncio.timeout(5):
        refused = await service.http.get(f"{path_of('old')}/events?after={after}", headers=stranger)

    assert (refused.status_code, refused.json()["code"]) == (403, "GROUP_AUTHORIZATION_FAILED")
    assert "first_revision" not in refused.json()


async def a_pruned_group(service: Service) -> int:
    """The first revision that is left."""
    owner = bearer(service.secrets.a_token("owner of old"))
    await service.http.post(f"{path_of('old')}/join", json=a_join_body(), headers=owner)
    store: Any = service.coordinator._store
    place = service.coordinator.locate(NAMESPACE, "old")
    store.tables.prune_shard(place.shard_id, place.last_seq)
    return place.last_seq + 1
