"""Messages that callers have not finished sending: what gRPC receives of them, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rota.core.access.budgets import Share
from rota.protocol.calls import COORDINATOR
from rota.protocol.errors import RejectedRequest
from rota.server.grpc import receiving
from rota.server.grpc.receiving import UNRECEIVED_BYTES, Unfinished
from rota.server.grpc.server import GrpcServer
from rota.v1 import coordinator_pb2 as pb
from tests.access.guarded import Secrets, a_guarded_service
from tests.client.virtual_time import in_virtual_time
from tests.grpc.clients import Channel, G, refused, stub
from tests.support.raw_http2 import RawHttp2

MIB = 1024 * 1024
ALL_BUT_ONE = b"x" * (8 * MIB - 1)
JOIN = f"/{COORDINATOR}/JoinGroup"
SESSION = f"/{COORDINATOR}/Session"
OPEN_TO_ALL = [
    pytest.param(f"/{COORDINATOR}/HeartbeatMany", marks=pytest.mark.thorough),
    pytest.param("/rota.v1.Access/WhoAmI", marks=pytest.mark.thorough),
    pytest.param("/grpc.health.v1.Health/Check", marks=pytest.mark.thorough),
    pytest.param("/grpc.health.v1.Health/Watch", marks=pytest.mark.thorough),
    pytest.param("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", marks=pytest.mark.thorough),
]


async def test_no_message_of_a_refused_caller_is_received(tmp_path: Path) -> None:
    async with a_guarded_service(Secrets(tmp_path)) as service:
        host, port = service.server.address.split(":")
        async with RawHttp2(host, int(port)) as raw:
            for _ in range(60):
                raw.begin(JOIN, 8 * MIB, ALL_BUT_ONE)
            await raw.until_ended(60)

            assert raw.sent <= 60 * 2 * UNRECEIVED_BYTES + MIB


@pytest.mark.parametrize("path", [SESSION, *OPEN_TO_ALL])
async def test_few_messages_without_proof_are_received(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rpcs that each caller may call: two messages at a time, until they have taken too long."""
    monkeypatch.setattr(receiving, "DEADLINE_S", 0.3)
    monkeypatch.setattr(receiving, "CHECK_EVERY_S", 0.05)
    async with a_guarded_service(Secrets(tmp_path)) as service:
        host, port = service.server.address.split(":")
        async with RawHttp2(host, int(port)) as raw:
            for _ in range(20):
                raw.begin(path, 8 * MIB, ALL_BUT_ONE)
            await raw.until_ended(20)

            assert raw.sent <= 12 * len(ALL_BUT_ONE)


async def test_unfinished_messages_give_way_to_others(
    server: GrpcServer, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a server without rules they are received, a few at a time. Others from the same address still have turns."""
    monkeypatch.setattr(receiving, "STALLED_S", 0.1)
    monkeypatch.setattr(receiving, "CHECK_EVERY_S", 0.05)
    host, port = server.address.split(":")
    async with RawHttp2(host, int(port)) as raw:
        for _ in range(20):
            raw.begin(JOIN, 8 * MIB, ALL_BUT_ONE)
        failed = await refused(a_heartbeat(channel))
        await raw.until_ended(14)

        assert failed.code == "UNKNOWN_MEMBER_ID"


# --- turns, in virtual time ----------------------------------------------------------------------------


class Callers:
    """Rpcs of several sources. The messages of some never arrive."""

    def __init__(self, messages: Share, waiting: Share) -> None:
        self.refusals = 0
        self.received: list[str] = []
        self.unfinished = Unfinished(messages, waiting, self._refused)

    def _refused(self) -> None:
        self.refusals += 1

    def stall(self, source: str, count: int) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self._receive(source, asyncio.Event().wait)) for _ in range(count)]

    async def send(self, source: str) -> None:
        await self._receive(source, lambda: asyncio.sleep(0))

    async def _receive(self, source: str, read: Callable[[], Awaitable[object]]) -> None:
        await self.unfinished.receive(source, read)
        self.received.append(source)


@in_virtual_time
async def test_other_sources_do_not_wait_for_one_that_stalls() -> None:
    began, callers = now(), Callers(messages=Share(2, 4), waiting=Share(10, 20))
    stalled = callers.stall("a", 10)
    await asyncio.sleep(0)

    for _ in range(100):
        await callers.send("b")

    assert now() == began
    await give_up(stalled)


@in_virtual_time
async def test_a_stalled_message_is_refused_where_others_wait() -> None:
    began, callers = now(), Callers(messages=Share(2, 2), waiting=Share(10, 20))
    stalled = callers.stall("a", 2)
    await asyncio.sleep(0)

    await callers.send("b")

    assert now() - began <= receiving.STALLED_S + receiving.CHECK_EVERY_S
    assert [detail_of(task) for task in stalled] == [receiving.STALLS] * 2
    assert callers.refusals == 2


@in_virtual_time
async def test_a_message_may_take_its_time_where_none_waits() -> None:
    began, callers = now(), Callers(messages=Share(2, 2), waiting=Share(10, 20))
    (slow,) = callers.stall("a", 1)

    await asyncio.wait((slow,))

    assert detail_of(slow) == receiving.TOO_SLOW
    assert now() - began >= receiving.DEADLINE_S


@in_virtual_time
async def test_rpcs_that_wait_are_bounded_for_each_source() -> None:
    began, callers = now(), Callers(messages=Share(1, 2), waiting=Share(3, 4))
    stalled = callers.stall("a", 1 + 3) + callers.stall("b", 1 + 1)
    await asyncio.sleep(0)

    for source in ("a", "b"):
        with pytest.raises(RejectedRequest, match=receiving.TOO_MANY):
            await callers.send(source)
    assert now() == began
    await give_up(stalled)
    await callers.send("a")


def now() -> float:
    return asyncio.get_running_loop().time()


def detail_of(task: asyncio.Task[None]) -> str:
    error = task.exception()
    assert isinstance(error, RejectedRequest)
    return error.detail


async def give_up(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def a_heartbeat(channel: Channel) -> Any:
    return await stub(channel).Heartbeat(pb.HeartbeatRequest(**G, member_id="m", generation_id=1))
