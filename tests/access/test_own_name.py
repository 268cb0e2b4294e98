"""Members belong to the callers that joined: each operation in a member's name × each caller, over both transports."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from rota.client.transports.grpc import GrpcTransport
from rota.client.transports.http import HttpTransport
from rota.credentials import Credentials
from rota.fencing.keys import KeyRing, new_key, read_keys
from rota.fencing.signer import Signer
from rota.fencing.tokens import verify
from rota.protocol import messages as m
from rota.protocol.errors import ErrorCode
from rota.v1 import coordinator_pb2 as pb
from tests.access.guarded import NAMESPACE, Secrets, Service, a_guarded_service
from tests.grpc.clients import SessionClient
from tests.runtime.conftest import until

E = ErrorCode
OPERATIONS: dict[str, Callable[[tuple[str, str], m.JoinReply], Any]] = {
    "join": lambda key, me: structs.replace(a_join(key), member_id=me.member_id),
    "take over": lambda key, _: a_join(key),
    "sync": lambda key, me: m.SyncGroup(*key, me.member_id, me.generation_id),
    "heartbeat": lambda key, me: m.Heartbeat(*key, me.member_id, me.generation_id),
    "commit": lambda key, me: m.CommitOffsets(
        *key, me.generation_id, (m.OffsetToCommit("t", 0, 7),), me.member_id, "host-1"
    ),
    "leave": lambda key, me: m.LeaveGroup(*key, (m.LeavingMember(me.member_id),)),
    "leave by instance": lambda key, _: m.LeaveGroup(*key, (m.LeavingMember("", "host-1"),)),
    "sign": lambda key, me: m.VerifyFence(*key, me.generation_id, me.member_id, sign=True),
    "check the fence": lambda key, me: m.VerifyFence(*key, me.generation_id, me.member_id),
}
REFUSED = {"own": E.NONE, "other": E.GROUP_AUTHORIZATION_FAILED, "administrator": E.NONE, "none": E.UNAUTHENTICATED}


def a_join(key: tuple[str, str]) -> m.JoinGroup:
    return m.JoinGroup(*key, "leader", (m.Protocol("single"),), 30_000, 30_000, group_instance_id="host-1")


@pytest.fixture
def key_pairs(tmp_path: Path) -> KeyRing:
    file = tmp_path / "fence.pem"
    file.write_bytes(new_key())
    return read_keys([file])


@asynccontextmanager
async def served(
    folder: Path, key_pairs: KeyRing, more: str = ""
) -> AsyncIterator[tuple[Service, dict[str, Credentials]]]:
    secrets = Secrets(folder)
    callers = {
        "own": Credentials(secrets.a_token("own")),
        "other": Credentials(secrets.a_token("other")),
        "administrator": Credentials(secrets.a_token("administrator", "operator")),
        "none": Credentials(),
    }
    async with a_guarded_service(secrets, more, sign=Signer(lambda: key_pairs, 60)) as service:
        yield service, callers


@asynccontextmanager
async def calling(service: Service, transport: str, credentials: Credentials) -> AsyncIterator[Callable[..., Any]]:
    """A function that sends a request and returns its reply."""
    made: Any
    if transport == "http":
        url = str(service.http.base_url)
        made = HttpTransport([url], credentials=credentials, inner=service.http._transport)
    else:
        made = GrpcTransport([f"grpc://{service.server.address}"], credentials=credentials)
    try:

        async def send(request: m.Request) -> Any:
            return (await made.send(request, timeout_ms=5_000)).reply

        yield send
    finally:
        await made.close()


def error_of(reply: Any) -> ErrorCode:
    """Of the call, or of the one member that leaves."""
    part = reply.members[0].error if isinstance(reply, m.LeaveReply) and reply.members else reply.error
    return ErrorCode(part if reply.error is E.NONE else reply.error)


async def test_only_the_caller_that_joined_acts_for_a_member(tmp_path: Path, key_pairs: KeyRing) -> None:
    found, expected = {}, {}
    async with served(tmp_path, key_pairs) as (service, callers):
        for transport, caller, name in product(("http", "grpc"), REFUSED, OPERATIONS):
            async with (
                calling(service, transport, callers["own"]) as own,
                calling(service, transport, callers[caller]) as it,
            ):
                case, key = (transport, caller, name), (NAMESPACE, f"{transport} {caller} {name}".replace(" ", "-"))
                me = await own(a_join(key))
                found[case] = error_of(await it(OPERATIONS[name](key, me)))
                expected[case] = REFUSED[caller]
                is_as_it_was = (await own(m.Heartbeat(*key, me.member_id, me.generation_id))).error is E.NONE
                assert is_as_it_was or found[case] is E.NONE, f"{case} was rejected, and the member is no more"

    expected |= {(transport, "other", "check the fence"): E.NONE for transport in ("http", "grpc")}
    assert found == expected


async def test_a_signed_token_is_for_the_caller_that_joined(tmp_path: Path, key_pairs: KeyRing) -> None:
    async with served(tmp_path, key_pairs) as (service, callers):
        async with calling(service, "http", callers["own"]) as own, calling(service, "http", callers["other"]) as other:
            key = (NAMESPACE, "g")
            me = await own(a_join(key))
            sign = m.VerifyFence(*key, me.generation_id, me.member_id, sign=True)
            mine, stolen = await own(sign), await other(sign)

    token = verify(mine.token, key_pairs.public)
    assert (token.member_id, token.fencing_token, token.group_instance_id) == (me.member_id, me.fencing_token, "host-1")
    assert (stolen.error, stolen.token) == (E.GROUP_AUTHORIZATION_FAILED, "")
    assert "another caller" in stolen.detail


@pytest.mark.parametrize(("caller", "leaves"), [("own", True), ("other", False), ("administrator", True)])
async def test_a_lost_stream_takes_no_other_callers_member_along(
    tmp_path: Path, key_pairs: KeyRing, caller: str, leaves: bool
) -> None:
    """It joined in the member's name, and is lost before the owner of the group has refused that."""
    key = (NAMESPACE, "g")
    async with served(tmp_path, key_pairs) as (service, callers):
        async with calling(service, "http", callers["own"]) as own:
            me = await own(a_join(key))
            stream = SessionClient(service.channel, tuple(callers[caller].headers().items()))
            await stream.ask(options=pb.SessionOptions(leave_after_ms=0))
            [session] = service.server._sessions
            service.server._roster.bind(session, key, me.member_id)

            await stream.close()
            await until(lambda: not service.server._roster._groups)

            beat = await own(m.Heartbeat(*key, me.member_id, me.generation_id))

    assert beat.error is (E.UNKNOWN_MEMBER_ID if leaves else E.NONE)


async def test_with_the_switch_off_callers_are_not_compared(tmp_path: Path, key_pairs: KeyRing) -> None:
    async with served(tmp_path, key_pairs, "bind_members_to_callers = false\n") as (service, callers):
        async with calling(service, "http", callers["own"]) as own, calling(service, "http", callers["other"]) as other:
            me = await own(a_join((NAMESPACE, "g")))
            reply = await other(m.Heartbeat(NAMESPACE, "g", me.member_id, me.generation_id))

    assert reply.error is E.NONE
