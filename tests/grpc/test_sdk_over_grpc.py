"""The SDK over gRPC, with one rpc per call and over a stream: the same members, notified sooner."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

import rota
from rota.client import Client, CoordinatorUnreachable, Member, NotFound, OffsetToCommit
from rota.protocol.messages import DescribeGroup, DescribeReply, Heartbeat, HeartbeatReply, JoinGroup, Protocol
from rota.server.grpc.server import GrpcServer
from rota.server.runtime.coordinator import LocalCoordinator
from tests.client.stage import GROUP, TOPICS, Partitions, all_partitions_are_shared
from tests.grpc.conftest import LIMITS
from tests.runtime.conftest import until
from tests.support.ports import free_port
from tests.support.processes import Processes

SCHEMES = ("grpc", "grpc+stream")
LONG_SESSION_MS = 60_000


def a_member(client: Client, session_ms: int = LONG_SESSION_MS) -> Member[Partitions]:
    return client.consumer(GROUP, TOPICS, session_timeout=session_ms / 1000)


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_members_share_the_work_commit_and_hand_over(server: GrpcServer, scheme: str) -> None:
    url = f"{scheme}://{server.address}"
    async with rota.connect(url) as client, asyncio.timeout(60):
        async with a_member(client) as stays:
            async with a_member(client) as leaves:
                await all_partitions_are_shared([stays, leaves])
                await leaves.commit([OffsetToCommit(*partition, 1) for partition in leaves.assignment or ()])
            await all_partitions_are_shared([stays])
        assert (await client.describe_group(GROUP)).state == "Empty"
        assert len(await client.offsets(GROUP)) == 6
        with pytest.raises(NotFound):
            await client.describe_group("nobody")


DOOMED = f"""
import asyncio, sys, rota

async def hold_a_share():
    async with rota.connect(sys.argv[1]) as client:
        topics = {TOPICS!r}
        async with client.consumer({GROUP!r}, topics, session_timeout={LONG_SESSION_MS / 1000}) as member:
            await member.wait_assigned()
            await asyncio.Event().wait()

asyncio.run(hold_a_share())
"""


async def test_a_dead_process_is_replaced_when_its_stream_breaks(server: GrpcServer, processes: Processes) -> None:
    url = f"grpc+stream://{server.address}?leave_after_ms=0"
    # Far less than the session: what ends the membership of the dead is its stream.
    async with rota.connect(url) as client, a_member(client) as survivor, asyncio.timeout(LONG_SESSION_MS / 2_000):
        await all_partitions_are_shared([survivor])
        doomed = processes.start(sys.executable, "-c", DOOMED, url)
        await until(lambda: len(survivor.assignment or ()) == 6)

        await asyncio.to_thread(doomed.kill9)

        await all_partitions_are_shared([survivor])


@asynccontextmanager
async def two_servers(coordinator: LocalCoordinator) -> AsyncIterator[tuple[GrpcServer, GrpcServer]]:
    """Two ways to the same coordinator, of which one may go."""
    servers = GrpcServer(coordinator, LIMITS), GrpcServer(coordinator, LIMITS)
    try:
        for server in servers:
            await server.start("127.0.0.1")
        yield servers
    finally:
        for server in servers:
            await server.stop(0)


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_members_go_on_at_another_server_and_nothing_is_lost(coordinator: LocalCoordinator, scheme: str) -> None:
    lost: list[str] = []
    async with two_servers(coordinator) as (first, second), AsyncExitStack() as stack, asyncio.timeout(60):
        urls = [f"{scheme}://{server.address}?leave_after_ms=2000" for server in (first, second)]
        urls = urls if "stream" in scheme else [url.partition("?")[0] for url in urls]
        client = await stack.enter_async_context(rota.connect(urls))
        members = [
            await stack.enter_async_context(
                client.consumer(GROUP, TOPICS, session_timeout=3.0, on_lost=lambda share: lost.append(str(share)))
            )
            for _ in range(3)
        ]
        await all_partitions_are_shared(members)
        before = await described(coordinator)

        await first.drain()
        await first.stop(0)
        beaten = [member.valid_until or 0.0 for member in members]
        pairs = list(zip(members, beaten, strict=True))
        await until(lambda: all((member.valid_until or 0.0) > was for member, was in pairs))

        assert (await described(coordinator)).generation_id == before.generation_id
        assert lost == []


async def described(coordinator: LocalCoordinator) -> DescribeReply:
    reply = (await coordinator.call(DescribeGroup("default", GROUP))).reply
    assert isinstance(reply, DescribeReply)
    return reply


async def test_the_heartbeats_of_a_process_come_to_travel_together(
    coordinator: LocalCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    on_heartbeat = coordinator.try_heartbeat

    def counting(request: object) -> object:
        seen.append(len(getattr(request, "members", ())))
        return on_heartbeat(request)  # type: ignore[arg-type]

    monkeypatch.setattr(coordinator, "try_heartbeat", counting)
    server = GrpcServer(coordinator, LIMITS)
    await server.start("127.0.0.1")
    async with AsyncExitStack() as stack, asyncio.timeout(60):
        stack.push_async_callback(server.stop, 0)
        client = await stack.enter_async_context(rota.connect(f"grpc+stream://{server.address}"))
        members = [await stack.enter_async_context(a_member(client, 1_500)) for _ in range(12)]
        await all_partitions_are_shared(members)
        seen.clear()
        await until(lambda: sum(seen) >= 48 and max(seen) == 12)
        messages = seen.copy()  # When members leave, the others join again, each on its own.

    # Alone they would have been as many messages as heartbeats.
    assert len(messages) <= sum(messages) / 4


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_where_nobody_listens_the_coordinator_is_unreachable(scheme: str) -> None:
    async with rota.connect(f"{scheme}://127.0.0.1:{free_port()}", retry_timeout=0.001) as client:
        with pytest.raises(CoordinatorUnreachable):
            await client.describe_group("g")
        beat = Heartbeat("default", "g", "m", 1)
        with pytest.raises(CoordinatorUnreachable):
            await client._transport.send(beat, timeout_ms=5_000)


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_an_address_where_nobody_listens_is_passed_over(server: GrpcServer, scheme: str) -> None:
    urls = [f"{scheme}://127.0.0.1:{free_port()}", f"{scheme}://{server.address}"]
    async with rota.connect(urls, retry_timeout=0.001) as client:
        beat = Heartbeat("default", "g", "m", 1)

        reply = (await client._transport.send(beat, timeout_ms=5_000)).reply

    assert isinstance(reply, HeartbeatReply)
    assert reply.error == "UNKNOWN_MEMBER_ID"


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_who_gives_a_call_up_hangs_up(server: GrpcServer, coordinator: LocalCoordinator, scheme: str) -> None:
    def a_join(instance: str) -> JoinGroup:
        return JoinGroup(
            "default", "g", "worker", (Protocol("p"),), 30_000, 30_000, group_instance_id=instance, wait_ms=20_000
        )

    async with rota.connect(f"{scheme}://{server.address}") as client, asyncio.timeout(60):
        await client._transport.send(a_join("i1"), timeout_ms=5_000)
        waiting = asyncio.create_task(client._transport.send(a_join("i2"), timeout_ms=30_000))
        await until(lambda: coordinator.parked() == 1)

        waiting.cancel()

        await until(lambda: coordinator.parked() == 0)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://x", "is no http://"),
        ("grpc://", "is no http://"),
        (["grpc://a:1", "http://b:2"], "one scheme"),
        ("grpc+stream://a:1?leave_after_ms=soon", "leave_after_ms=MILLISECONDS"),
        ("grpc+stream://a:1?what=1", "leave_after_ms=MILLISECONDS"),
    ],
)
def test_a_url_that_is_none_is_said_at_once(url: str | list[str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        rota.connect(url)
