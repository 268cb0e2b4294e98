"""Every route, rpc and call of a stream × both quotas: each asks the meters. One that is new and does not, fails."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx
import pytest
import pytest_asyncio

from rota.core.access.quotas import BURST_S
from rota.protocol.calls import NAMESPACE_PATH
from rota.server.grpc.calls import ACCESS
from rota.v1 import coordinator_pb2 as pb
from tests.access.guarded import GROUP, NAMESPACE, Secrets, Service, a_guarded_service, bearer
from tests.access.test_access_matrix import OF_ROUTES, OF_RPCS, OPEN, messages_by_rpc, targets_by_route
from tests.grpc.clients import SessionClient

ATTEMPTS = 10 * BURST_S
"""Of an operation of which one a second is allowed."""
QUOTAS = {
    "caller": '[[caller_quotas]]\nsubject = "token:caller-*"\nrequests_per_s = 1\n',
    "namespace": f'[[quotas]]\nnamespace = "{NAMESPACE}"\nrequests_per_s = 1\n',
}
PLACE: dict[str, Any] = {"namespace": NAMESPACE, "group_id": GROUP}
BEATS = [pb.MemberHeartbeat(member_id="nobody", generation_id=1)]
CALLS: dict[str, Any] = {
    "join": pb.JoinGroupRequest(**PLACE, protocol_type="worker", member_id="nobody"),
    "sync": pb.SyncGroupRequest(**PLACE, member_id="nobody", generation_id=1),
    "leave": pb.LeaveGroupRequest(**PLACE, members=[pb.LeavingMember(member_id="nobody")]),
    "commit": pb.CommitOffsetsRequest(**PLACE, member_id="nobody", generation_id=1),
    "heartbeat": pb.HeartbeatManyRequest(groups=[pb.GroupHeartbeat(**PLACE, members=BEATS)]),
}
OF_NO_CALLER = {"options", "cancel"}
"""They are about the stream itself, and cost nothing beyond it."""
OPERATIONS = [*OF_ROUTES, *OF_RPCS, *CALLS]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=QUOTAS)
async def world(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> AsyncIterator[tuple[str, Service, list[dict[str, str]]]]:
    """A quota, the service that has it, and for each operation the credentials of a caller that may do all."""
    secrets = Secrets(tmp_path_factory.mktemp("secrets"))
    callers = OPERATIONS if request.param == "caller" else OPERATIONS[:1]
    headers = [bearer(secrets.a_token(f"caller-{number}", "admin", "*")) for number, _ in enumerate(callers)]
    async with a_guarded_service(secrets, QUOTAS[request.param]) as service:
        yield request.param, service, headers


@pytest.mark.asyncio(loop_scope="module")
async def test_every_operation_asks_the_meters(world: tuple[str, Service, list[dict[str, str]]]) -> None:
    scope, service, headers = world

    throttled = set()
    for number, operation in enumerate(OPERATIONS):
        for _ in range(1 if operation in CALLS else ATTEMPTS):  # a stream makes all of them itself
            if await is_throttled(service, operation, headers[number % len(headers)]):
                throttled.add(operation)
                break

    assert throttled == {operation for operation in OPERATIONS if is_metered(operation, scope)}


def test_every_call_of_a_stream_is_among_them() -> None:
    one_of = pb.SessionRequest.DESCRIPTOR.oneofs_by_name["request"]

    assert {field.name for field in one_of.fields} == set(CALLS) | OF_NO_CALLER


def is_metered(operation: Any, scope: str) -> bool:
    """All operations that need rights ask the caller's meter, and its namespace's where they are about one."""
    if operation in CALLS:
        return True
    rows: dict[Any, Any] = {**OF_ROUTES, **OF_RPCS}
    if rows[operation] is OPEN:
        return False
    if scope == "caller":
        return True
    if isinstance(operation, tuple):
        return bool(operation[1].startswith(NAMESPACE_PATH))
    return not operation.startswith(f"/{ACCESS}/") and not operation.endswith("/Session")


async def is_throttled(service: Service, operation: Any, headers: dict[str, str]) -> bool:
    if isinstance(operation, tuple):
        method, path, query, body = targets_by_route()[operation]
        async with service.http.stream(method, path, params=query, json=body, headers=headers) as response:
            return response.status_code == httpx.codes.TOO_MANY_REQUESTS
    metadata = tuple(headers.items())
    try:
        if operation in CALLS or operation.endswith("/Session"):
            return await is_throttled_on_stream(service, operation, metadata)
        return await is_rpc_throttled(service, operation, metadata)
    except grpc.aio.AioRpcError as error:
        return error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def is_rpc_throttled(service: Service, rpc: str, metadata: Any) -> bool:
    data = messages_by_rpc()[rpc]
    if rpc.endswith("/WatchGroup"):
        stream: Any = service.channel.unary_stream(rpc)(data, metadata=metadata)  # type: ignore[arg-type]
        await stream.initial_metadata()
        if stream.done():
            return (await stream.code()) is grpc.StatusCode.RESOURCE_EXHAUSTED
        stream.cancel()
        return False
    answer: Any = await service.channel.unary_unary(rpc)(data, metadata=metadata)  # type: ignore[arg-type]
    if rpc.endswith("/HeartbeatMany"):
        return bool(pb.HeartbeatManyResponse.FromString(answer).groups[0].error == "THROTTLED")
    return False


async def is_throttled_on_stream(service: Service, call: str, metadata: Any) -> bool:
    """The opening of a stream, or one of its calls, which are all made on one."""
    client = SessionClient(service.channel, metadata)
    try:
        if call not in CALLS:
            number = await client.send(options=pb.SessionOptions())
            await client.until(lambda: number in client.answers or client.ended is not None)
            return client.ended is grpc.StatusCode.RESOURCE_EXHAUSTED
        for _ in range(ATTEMPTS):
            event = await client.ask(**{call: CALLS[call]})
            group = event.heartbeat.groups[0].error if call == "heartbeat" and event.heartbeat.groups else ""
            if "THROTTLED" in (event.error.code, group):
                return True
        return False
    finally:
        await client.close()
