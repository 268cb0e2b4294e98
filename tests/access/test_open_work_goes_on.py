"""What the end of open work leaves alone: members, other groups of a stream, and clients that have their next token."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from rota.client import Credentials
from rota.client.transports import addresses
from rota.client.transports.addresses import transport_to
from rota.client.transports.port import GroupEvent, Transport
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import GetTopic, Request
from rota.v1 import coordinator_pb2 as pb
from tests.access.guarded import NAMESPACE, Service, bearer
from tests.access.test_open_work_ends import of, path
from tests.grpc.clients import SessionClient

pytestmark = pytest.mark.asyncio(loop_scope="module")
TOPICS = f"/v1/namespaces/{NAMESPACE}/topics"


def on_a_stream(service: Service, name: str) -> SessionClient:
    return SessionClient(service.channel, tuple(bearer(service.secrets.a_token(name)).items()))


async def test_a_revoked_caller_stays_a_member(service: Service) -> None:
    """Also where it asked to leave as soon as its stream is lost."""
    client = on_a_stream(service, "stays")
    await client.ask(options=pb.SessionOptions(leave_after_ms=1))
    joined = await client.ask(join=of("stays", "own"))

    service.secrets.revoke("stays")
    ended = await client.until_ended()
    described = await service.http.get(path("stays"), headers=bearer(service.secrets.a_token("viewer", "viewer")))

    assert ended.name == "UNAUTHENTICATED"
    assert [member["member_id"] for member in described.json()["members"]] == [joined.joined.member_id]


DENIED = """
[[rules]]
name = "not this group"
subjects = ["token:several"]
actions = ["join"]
groups = ["denied"]
effect = "deny"
"""


async def test_a_stream_goes_on_for_the_groups_that_are_left(service: Service) -> None:
    client = on_a_stream(service, "several")
    owner = service.secrets.a_token("joins as well")
    for group in ("denied", "left"):
        assert (await client.ask(join=of(group, "own"))).HasField("joined")

    service.secrets.write(more=DENIED)
    await service.guard.open_work.sweep()
    others = SessionClient(service.channel, tuple(bearer(owner).items()))
    for group in ("denied", "left"):
        await others.send(join=of(group, "other"))
    news = await client.next_news("rebalance")
    refusal = await client.ask(join=of("denied", "own"))
    await client.ask(options=pb.SessionOptions())

    assert (news.group_id, client.news, client.ended) == ("left", [], None)
    assert refusal.error.code == "GROUP_AUTHORIZATION_FAILED"
    service.secrets.write(more=DENIED.replace('"denied"', '"denied", "left"'))
    assert (await client.until_ended()).name == "PERMISSION_DENIED"
    await client.close()
    await others.close()


async def test_groups_are_looked_at_again_with_other_rules_alone(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each second, with all groups of a stream in one turn of the event loop, it would stand still for long."""
    client, looked_at, admit = on_a_stream(service, "looked at"), list[str](), service.guard.admit_unread

    def noted(request: type[Request], namespace: str, name: str) -> None:
        looked_at.append(name)
        admit(request, namespace, name)

    assert (await client.ask(join=of("looked-at", "own"))).HasField("joined")
    await service.guard.open_work.sweep()
    monkeypatch.setattr(service.guard, "admit_unread", noted)

    await service.guard.open_work.sweep()
    assert looked_at == []
    service.secrets.write()
    await service.guard.open_work.sweep()
    assert "looked-at" in looked_at
    await client.close()


@pytest.mark.parametrize("over", ["http", "grpc", "grpc+stream"])
async def test_a_client_goes_on_with_its_next_token(
    service: Service, tmp_path: Path, over: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, "LONG_S", 0.0)
    file = tmp_path / "token"
    file.write_text(service.secrets.a_token(f"first {over}"))
    address = service.http.base_url.netloc.decode() if over == "http" else service.server.address
    transport = transport_to([f"{over}://{address}"], None, Credentials(token_file=file))
    topic = GetTopic(NAMESPACE, f"wanted-{over[-6:]}", wait_ms=20_000)
    parked = asyncio.create_task(transport.send(topic, timeout_ms=30_000))
    watching = asyncio.create_task(watch_again_and_again(transport))
    while len(service.guard.open_work) < 2:
        await service.http.get("/healthz")

    file.write_text(service.secrets.a_token(f"second {over}"))
    service.secrets.revoke(f"first {over}")
    await service.guard.open_work.sweep()
    owner = bearer(service.secrets.a_token("owner", "operator"))
    made = await service.http.put(f"{TOPICS}/{topic.topic}", json={"partitions": 3}, headers=owner)

    assert made.is_success
    assert (await parked).reply.error is ErrorCode.NONE
    assert not watching.done()
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await transport.close()


async def watch_again_and_again(transport: Transport) -> list[GroupEvent]:
    """As the SDK's own watch does."""
    while True:
        async for _ in transport.watch(NAMESPACE, "watched", None):
            continue


@pytest.mark.thorough
async def test_a_connection_closes_before_its_certificate(service: Service) -> None:
    """So that a client that has the next certificate shows that one, and is never rejected."""
    authority = service.secrets.authority
    authority.good_for = timedelta(seconds=4)
    certificate = authority.issue("brief", common_name="brief")
    authority.good_for = timedelta(days=1)
    ends = x509.load_pem_x509_certificate(certificate.cert.read_bytes()).not_valid_after_utc
    tls = authority.client_context(certificate)
    reader, writer = await asyncio.open_connection("127.0.0.1", service.tls_port, ssl=tls)

    writer.write(b"GET /v1/whoami HTTP/1.1\r\nhost: localhost\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    async with asyncio.timeout(10):
        rest = await reader.read()

    assert head.startswith(b"HTTP/1.1 200")
    assert b'"cn:brief"' in rest
    assert datetime.now(UTC) < ends
    writer.close()
