"""The HTTP transport: what becomes of every kind of answer, and of none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx
import pytest

from rota.client import CoordinatorUnreachable
from rota.client.transports import HttpTransport
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    Heartbeat,
    HeartbeatReply,
)
from rota.protocol.wire.problems import problem_document
from rota.protocol.wire.status import STATUS
from tests.client.virtual_time import in_virtual_time

BEAT = Heartbeat("default", "g", "m-1", 3, wait_ms=100)
BEATING = {"generation_id": 3, "state": "Stable", "waited_ms": 0, "revision": 7, "epoch": 2}

Handler = Callable[[httpx.Request], httpx.Response]


def a_transport(*handlers: Handler) -> HttpTransport:
    """One address per handler: `http://replica-0`, `http://replica-1`, …"""

    def route(request: httpx.Request) -> httpx.Response:
        return handlers[int(request.url.host.removeprefix("replica-"))](request)

    addresses = [f"http://replica-{index}" for index in range(len(handlers))]
    return HttpTransport(addresses, inner=httpx.MockTransport(route))


def answering(status: int, document: object) -> Handler:
    return lambda request: httpx.Response(status, json=document)


def refusing(code: ErrorCode, detail: str = "", **extra: str) -> Handler:
    """Answers with an error of Rota's."""
    return answering(STATUS[code].http, problem_document(code, detail, None, **extra))


def refusing_connections(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("connection refused", request=request)


def breaking_off(request: httpx.Request) -> httpx.Response:
    raise httpx.ReadError("connection reset", request=request)


async def test_an_answer_brings_its_place_in_history() -> None:
    answered = await a_transport(answering(200, BEATING)).send(BEAT, timeout_ms=1_000)
    assert answered.reply == HeartbeatReply(generation_id=3, state="Stable")
    assert (answered.revision, answered.epoch) == (7, 2)


async def test_an_address_that_refuses_connections_is_skipped() -> None:
    transport = a_transport(refusing_connections, answering(200, BEATING))
    assert (await transport.send(BEAT, timeout_ms=1_000)).reply.error is ErrorCode.NONE


async def test_a_broken_call_is_not_resent_but_the_next_goes_elsewhere() -> None:
    transport = a_transport(breaking_off, answering(200, BEATING))
    with pytest.raises(CoordinatorUnreachable):
        await transport.send(BEAT, timeout_ms=1_000)
    assert (await transport.send(BEAT, timeout_ms=1_000)).reply.error is ErrorCode.NONE


@pytest.mark.parametrize(
    "code",
    [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS],
)
async def test_after_a_useless_address_the_next_call_goes_elsewhere(code: ErrorCode) -> None:
    transport = a_transport(refusing(code), answering(200, BEATING))
    assert (await transport.send(BEAT, timeout_ms=1_000)).reply.error is code
    assert (await transport.send(BEAT, timeout_ms=1_000)).reply.error is ErrorCode.NONE


# --- owners -----------------------------------------------------------------------------------


class Replicas:
    """Several that answer for any group; one of them owns it, and all know."""

    def __init__(self, count: int) -> None:
        self.owner = 0
        self.epoch = 1
        self.denies = False
        self.down: set[int] = set()
        self.calls: list[int] = []
        self.searched: list[int] = []
        """The servers that were asked for the owner."""
        self.addresses = [f"http://replica-{index}" for index in range(count)]

    def transport(self, *listed: int, direct: bool = False) -> HttpTransport:
        addresses = [self.addresses[index] for index in listed]
        return HttpTransport(addresses, direct=direct, inner=httpx.MockTransport(self.answer))

    def answer(self, request: httpx.Request) -> httpx.Response:
        index = int(request.url.host.removeprefix("replica-"))
        if index in self.down:
            raise httpx.ConnectError("connection refused", request=request)
        if request.url.path.endswith("/coordinator"):
            self.searched.append(index)
            if self.denies:
                return httpx.Response(403, json=problem_document(ErrorCode.GROUP_AUTHORIZATION_FAILED, ""))
            return httpx.Response(200, json=self.reported(index))
        self.calls.append(index)
        return httpx.Response(200, json={**BEATING, "epoch": self.epoch})

    def reported(self, index: int) -> dict[str, object]:
        owner = {"replica_id": f"replica-{self.owner}", "address": self.addresses[self.owner]}
        return {**owner, "epoch": self.epoch, "lease_left_ms": 5_000, "reported_by": f"replica-{index}"}

    async def asked(self, transport: HttpTransport) -> int:
        """The server that was asked last, when all that can be learnt of it has been learnt."""
        await transport.send(BEAT, timeout_ms=1_000)
        await settle()
        return self.calls[-1]

    def hand_over_to(self, index: int) -> None:
        self.owner, self.epoch = index, self.epoch + 1


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_a_members_calls_go_to_the_owner_of_its_group() -> None:
    replicas = Replicas(3)
    replicas.hand_over_to(2)
    transport = replicas.transport(0, 1, 2)
    assert [await replicas.asked(transport) for _ in range(3)] == [0, 2, 2]


@in_virtual_time
async def test_the_next_owner_is_found_by_the_epoch_of_an_answer() -> None:
    replicas = Replicas(3)
    transport = replicas.transport(0, 1, 2)
    assert [await replicas.asked(transport) for _ in range(2)] == [0, 0]
    replicas.hand_over_to(1)
    assert await replicas.asked(transport) == 0
    await asyncio.sleep(1)
    assert [await replicas.asked(transport) for _ in range(2)] == [0, 1]


@in_virtual_time
async def test_an_owner_that_is_gone_is_passed_over_within_the_call() -> None:
    replicas = Replicas(3)
    replicas.hand_over_to(2)
    transport = replicas.transport(0, 1, 2)
    assert [await replicas.asked(transport) for _ in range(2)] == [0, 2]
    replicas.down.add(2)
    assert await replicas.asked(transport) == 0
    await asyncio.sleep(1)
    assert [await replicas.asked(transport) for _ in range(3)] == [0, 0, 0]
    assert replicas.searched == [0, 2, 0, 1]


@pytest.mark.parametrize("address", ["https://replica-1", "http://replica-9", "", "replica-1"])
async def test_an_unreachable_owner_is_left_to_the_others(address: str) -> None:
    replicas = Replicas(2)
    replicas.down.add(9)
    replicas.addresses[1] = address
    replicas.hand_over_to(1)
    direct = replicas.transport(0, direct=True)
    assert [await replicas.asked(direct) for _ in range(3)] == [0, 0, 0]


@in_virtual_time
async def test_a_joiner_without_rights_to_locate_does_not_keep_asking() -> None:
    replicas = Replicas(2)
    replicas.denies = True
    transport = replicas.transport(0, 1)
    for _ in range(5):
        assert await replicas.asked(transport) == 0
        await asyncio.sleep(1.5)
    assert replicas.searched == [0]


STREAM = (
    b": ping\n\n"
    b'event: member_joined\nid: 7\ndata: {"at_ms":1,"generation_id":0,"kind":"member_joined","reason":"new",'
    b'"payload":{"member_id":"m"}}\n\n'
    b"event: server-drain\nretry: 100\ndata: {}\n\n"
    b"event: cut\nid: 8\ndata: {"
)


async def test_watching_yields_events_without_those_of_the_stream() -> None:
    seen: list[httpx.URL] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.url)
        return httpx.Response(200, content=STREAM, headers={"content-type": "text/event-stream; charset=utf-8"})

    events = [event async for event in a_transport(answer).watch("default", "g", 6)]
    assert [(event.revision, event.kind, event.payload) for event in events] == [
        (7, "member_joined", {"member_id": "m"})
    ]
    assert seen[0].params["after"] == "6"
