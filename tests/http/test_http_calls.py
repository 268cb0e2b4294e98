"""Every call of the protocol over HTTP: its request reaches the coordinator, and its reply reaches the caller."""

from __future__ import annotations

import httpx
import pytest
from msgspec.structs import replace

from rota.core.replica.ports import JournalEvent, StoreUnavailable
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    HeartbeatReply,
    JoinGroup,
    JoinReply,
    Request,
    SyncReply,
)
from rota.protocol.wire.problems import decode_problem
from rota.protocol.wire.replies import decode_reply
from rota.protocol.wire.routes import encode_request
from rota.protocol.wire.status import STATUS
from tests.http.scripted import EPOCH, REVISION, ScriptedCoordinator
from tests.support.examples import EXAMPLES, Example, name_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

GROUP = "/v1/namespaces/default/groups/indexers"
JOIN = {"protocol_type": "worker", "protocols": [{"name": "range"}]}
HEARTBEAT = {"member_id": "m-1", "generation_id": 7}


async def send(client: httpx.AsyncClient, request: Request) -> httpx.Response:
    target = encode_request(request)
    return await client.request(target.method, target.path, params=list(target.query), json=target.body)


def as_received(request: Request) -> Request:
    """What the server makes of a request: the host is the caller's."""
    return replace(request, host="127.0.0.1") if isinstance(request, JoinGroup) else request


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
async def test_a_call_goes_there_and_back(
    example: Example, scripted: ScriptedCoordinator, client: httpx.AsyncClient
) -> None:
    scripted.reply = example.reply
    response = await send(client, example.request)

    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert scripted.requests == [as_received(example.request)]
    received = decode_reply(type(example.reply), response.json())
    assert (received.reply, received.revision, received.epoch) == (example.reply, REVISION, EPOCH)


@pytest.mark.parametrize("code", [code for code in ErrorCode if code is not ErrorCode.NONE])
async def test_every_error_is_a_problem_document_with_its_status(
    code: ErrorCode, scripted: ScriptedCoordinator, client: httpx.AsyncClient
) -> None:
    scripted.reply = JoinReply(code, detail="why", member_id="m-1")
    response = await client.post(f"{GROUP}/join", json=JOIN)

    assert response.status_code == STATUS[code].http
    assert response.headers["content-type"] == "application/problem+json"
    retry_after_s = STATUS[code].retry_after_s
    assert response.headers.get("retry-after") == (None if retry_after_s is None else str(retry_after_s))
    document = response.json()
    assert document["status"] == response.status_code
    assert document["retriable"] == STATUS[code].retriable
    problem = decode_problem(response.status_code, document)
    assert problem is not None
    assert (problem.code, problem.detail, problem.member_id) == (code, "why", "m-1")
    assert (problem.revision, problem.epoch) == (REVISION, EPOCH)


async def test_a_call_of_the_wrong_replica_is_answered_with_the_owner(
    scripted: ScriptedCoordinator, client: httpx.AsyncClient
) -> None:
    scripted.reply, scripted.owner = JoinReply(ErrorCode.NOT_COORDINATOR), "http://10.0.0.7:8080"
    response = await client.post(f"{GROUP}/join", json=JOIN)

    assert response.status_code == 421
    assert response.json()["owner"] == "http://10.0.0.7:8080"


@pytest.mark.parametrize(
    ("path", "body", "reply", "document"),
    [
        ("join", JOIN, JoinReply(pending=True, member_id="m-1"), {"outcome": "pending", "member_id": "m-1"}),
        ("sync", HEARTBEAT, SyncReply(pending=True), {"outcome": "pending"}),
    ],
)
async def test_what_is_not_over_yet_is_202(
    path: str,
    body: dict[str, object],
    reply: JoinReply | SyncReply,
    document: dict[str, object],
    scripted: ScriptedCoordinator,
    client: httpx.AsyncClient,
) -> None:
    scripted.reply = reply
    response = await client.post(f"{GROUP}/{path}", json=body)
    assert response.status_code == 202
    assert response.json() == {**document, "revision": REVISION, "epoch": EPOCH}


async def test_a_member_in_a_batch_fails_alone(scripted: ScriptedCoordinator, client: httpx.AsyncClient) -> None:
    scripted.reply = HeartbeatReply(ErrorCode.UNKNOWN_MEMBER_ID)
    response = await client.post(f"{GROUP}/heartbeat", json={"members": [HEARTBEAT], "wait_ms": 30_000})
    assert response.status_code == 200
    assert response.json()["members"][0]["error"] == "UNKNOWN_MEMBER_ID"


async def test_the_coordinator_of_a_group_can_be_found(client: httpx.AsyncClient) -> None:
    response = await client.get(f"{GROUP}/coordinator")
    assert response.json() == {
        "shard_id": 2,
        "replica_id": "replica-1",
        "address": "http://10.0.0.7:8080",
        "epoch": EPOCH,
        "lease_left_ms": 4_200,
        "revision": REVISION,
        "reported_by": "replica-0",
        "grpc_address": "",
        "worker_http_port": 0,
        "worker_grpc_port": 0,
    }


async def test_the_journal_is_read_in_pages(scripted: ScriptedCoordinator, client: httpx.AsyncClient) -> None:
    scripted.journal = [
        JournalEvent(seq, 1_000 + seq, "default", "indexers", 7, "member_joined", "new", {"n": seq}, EPOCH)
        for seq in range(1, 6)
    ]
    page = (await client.get("/v1/events", params={"shard": 2, "after": 1, "limit": 2})).json()
    assert [event["revision"] for event in page["events"]] == [2, 3]
    assert (page["revision"], page["epoch"]) == (3, EPOCH)
    assert page["events"][0] == {
        "revision": 2,
        "epoch": EPOCH,
        "at_ms": 1_002,
        "namespace": "default",
        "group_id": "indexers",
        "generation_id": 7,
        "kind": "member_joined",
        "reason": "new",
        "payload": {"n": 2},
    }
    empty = (await client.get("/v1/events", params={"shard": 2, "after": 5})).json()
    assert empty == {"events": [], "revision": 5, "epoch": 0}


async def test_a_shard_that_is_none_is_refused(client: httpx.AsyncClient) -> None:
    response = await client.get("/v1/events", params={"shard": 4})
    assert (response.status_code, response.json()["detail"]) == (400, "shard must be from 0 to 3")


async def test_a_lost_store_is_503_and_a_bug_of_ours_is_500(
    scripted: ScriptedCoordinator, client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    scripted.reply = StoreUnavailable("password=secret")
    gone = await client.get(GROUP)
    scripted.reply = KeyError("secret")
    bug = await client.get(GROUP)

    for response, status in ((gone, 503), (bug, 500)):
        assert (response.status_code, response.json()["code"]) == (status, "COORDINATOR_NOT_AVAILABLE")
        assert "secret" not in response.text
    assert [record.message for record in caplog.records] == ["a request failed"]


async def test_probes_distinguish_alive_from_ready(scripted: ScriptedCoordinator, client: httpx.AsyncClient) -> None:
    assert (await client.get("/readyz")).json() == {"outcome": "ready"}
    scripted.is_ready = (False, "3 of 4 shards are served")
    unready = await client.get("/readyz")
    assert (unready.status_code, unready.json()["detail"]) == (503, "3 of 4 shards are served")
    assert (await client.get("/healthz")).json() == {"outcome": "ok"}
    assert (await client.head("/healthz")).status_code == 200


async def test_metrics_count_what_was_answered(scripted: ScriptedCoordinator, client: httpx.AsyncClient) -> None:
    async def counted(line: str) -> float:
        lines = (await client.get("/metrics")).text.splitlines()
        return float(next((each.split()[-1] for each in lines if each.startswith(line)), "0"))

    heartbeats = 'rota_heartbeats_total{result="NONE"}'
    failures = 'rota_requests_total{code="UNKNOWN_TOPIC",operation="topicsGet"}'
    before = await counted(heartbeats), await counted(failures)
    await client.post(f"{GROUP}/heartbeat", json={"members": [HEARTBEAT, HEARTBEAT]})
    scripted.reply = JoinReply(ErrorCode.UNKNOWN_TOPIC)
    await client.get("/v1/namespaces/default/topics/nothing")
    assert (await counted(heartbeats), await counted(failures)) == (before[0] + 2, before[1] + 1)
