"""Bodies of callers that no rule admits are neither awaited nor parsed, on either transport."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace

from rota.core.access.rules import Rule
from rota.protocol.calls import Action
from rota.protocol.wire.routes import encode_request
from rota.protocol.wire.rpcs import RPCS
from rota.server.access.tokens import write_tokens
from rota.v1 import coordinator_pb2 as pb
from tests.access.guarded import GROUP, NAMESPACE, Service, bearer
from tests.grpc.clients import SessionClient, refused, stub
from tests.support.examples import EXAMPLES, Example, name_of

pytestmark = pytest.mark.asyncio(loop_scope="module")
WITH_BODY = [example for example in EXAMPLES if example.call.has_body]


async def answer_to_a_head(service: Service, method: str, path: str, headers: dict[str, str]) -> bytes:
    """Send a head that announces 7 MB, and read the answer's first line without having sent any of them."""
    url = urlsplit(str(service.http.base_url))
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    try:
        shown = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 7000000\r\n{shown}\r\n".encode())
        async with asyncio.timeout(10):
            return await reader.readline()
    finally:
        writer.close()


@pytest.mark.parametrize("example", WITH_BODY, ids=name_of)
async def test_no_body_is_awaited_of_an_anonymous_caller(service: Service, example: Example) -> None:
    target = encode_request(example.request)

    assert (await answer_to_a_head(service, target.method, target.path, {})).startswith(b"HTTP/1.1 401")


@pytest.mark.parametrize("call", ["join", "heartbeat", "offsets"])
async def test_no_body_is_awaited_for_another_namespace(service: Service, call: str) -> None:
    headers = bearer(service.secrets.a_token(f"member-{call}"))

    answer = await answer_to_a_head(service, "POST", f"/v1/namespaces/team-z/groups/g/{call}", headers)

    assert answer.startswith(b"HTTP/1.1 403")


@pytest.mark.parametrize("headers", ["Connection: close", "Connection: close\r\nExpect: 100-continue", "Expect: x"])
async def test_a_refused_caller_reads_its_answer_to_the_end(service: Service, headers: str) -> None:
    """Also one that sends all of its body before it reads, on a connection that ends with the answer."""
    url = urlsplit(str(service.http.base_url))
    path = f"/v1/namespaces/{NAMESPACE}/groups/g/join"
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 7000000\r\n{headers}\r\n\r\n".encode()
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    try:
        async with asyncio.timeout(20):
            writer.write(head)
            for _ in range(70):
                writer.write(b"x" * 100_000)
                await writer.drain()
            answer = await reader.readuntil(b"}")
    finally:
        writer.close()

    assert answer.startswith(b"HTTP/1.1 401")


async def test_a_body_that_was_never_sent_takes_no_other_request(service: Service) -> None:
    """A client that was refused before the server asked for the body may go on with its next request."""
    url = urlsplit(str(service.http.base_url))
    path = f"/v1/namespaces/{NAMESPACE}/groups/g/join"
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 60\r\nExpect: 100-continue\r\n\r\n".encode()
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    try:
        async with asyncio.timeout(8):
            writer.write(head)
            answer = await reader.readuntil(b"}")
            rest = await reader.read()
    finally:
        writer.close()

    assert (answer[:12], rest) == (b"HTTP/1.1 401", b"")


async def test_an_administrator_of_empty_groups_may_commit(service: Service) -> None:
    """One of the actions that a call may need is enough for its body to be read."""
    token = service.secrets.a_token("resets")
    only = Rule("resets", ("token:resets",), frozenset({Action.ADMINISTER}), (NAMESPACE,))
    service.secrets.records[-1] = replace(service.secrets.records[-1], grants=(only,))
    write_tokens(service.secrets.tokens_file, service.secrets.records)
    body = {"generation_id": -1, "offsets": [{"topic": "t", "partition": 0, "offset": 1}]}

    path = f"/v1/namespaces/{NAMESPACE}/groups/empty/offsets"
    answer = await service.http.post(path, json=body, headers=bearer(token))

    assert answer.status_code == 200


@pytest.mark.parametrize("path", [rpc.path for rpc in RPCS.values()])
async def test_no_message_of_an_anonymous_caller_is_decoded(service: Service, path: str) -> None:
    no_message = b"\xff" * 100

    failed = await refused(service.channel.unary_unary(path)(no_message))  # type: ignore[arg-type]

    assert failed.status.name == "UNAUTHENTICATED"


@pytest.mark.parametrize("name", ["JoinGroup", "CommitOffsets"])
async def test_no_message_for_another_namespace_is_converted(service: Service, name: str) -> None:
    """The message names no member and no protocol, which its conversion would refuse first."""
    metadata = tuple(bearer(service.secrets.a_token(f"grpc-{name}")).items())
    message = getattr(pb, f"{name}Request")(namespace="team-z", group_id="g")

    failed = await refused(getattr(stub(service.channel), name)(message, metadata=metadata))

    assert failed.status.name == "PERMISSION_DENIED"


async def test_heartbeats_of_an_anonymous_caller_are_not_read(service: Service) -> None:
    """None of them has a name that a group could have."""
    many = pb.HeartbeatManyRequest(groups=[pb.GroupHeartbeat(namespace=NAMESPACE, group_id="\n")] * 1_000)
    stream = SessionClient(service.channel)

    unary = await refused(stub(service.channel).HeartbeatMany(many))
    streamed = (await stream.ask(heartbeat=many)).error
    await stream.close()

    assert {(answer.code, answer.detail) for answer in (unary, streamed)} == {
        ("UNAUTHENTICATED", "anonymous may join nowhere: no rule allows it")
    }


async def test_a_message_of_too_many_heartbeats_is_refused(service: Service) -> None:
    metadata = tuple(bearer(service.secrets.a_token("many")).items())
    beats = [pb.MemberHeartbeat(member_id="m", generation_id=1)] * 101
    many = pb.HeartbeatManyRequest(groups=[pb.GroupHeartbeat(namespace=NAMESPACE, group_id=GROUP, members=beats)] * 100)

    failed = await refused(stub(service.channel).HeartbeatMany(many, metadata=metadata))

    assert failed.code == "PAYLOAD_TOO_LARGE"
