"""HTTP and gRPC in one process: one coordinator behind both, and one way to go."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import grpc
import httpx
import pytest

from rota.v1 import admin_pb2
from tests.grpc.clients import G, SessionClient, a_join, a_stable_member, admin, refused, stub
from tests.support.ports import free_port
from tests.support.processes import Process, Processes

pytestmark = pytest.mark.processes


class Server:
    """`rota serve` with both transports, on a store in a folder of the test."""

    def __init__(self, processes: Processes, folder: Path) -> None:
        self.http, self.grpc = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        store = f"sqlite:///{folder / 'rota.db'}"
        options = ("--store", store, "--http", self.http, "--grpc", self.grpc)
        self.process: Process = processes.rota("serve", *options)
        self.process.wait_for_url(f"http://{self.http}/readyz")


async def test_a_group_is_the_same_over_http_and_grpc(processes: Processes, tmp_path: Path) -> None:
    server = Server(processes, tmp_path)
    async with grpc.aio.insecure_channel(server.grpc) as channel:
        joined = await a_stable_member(channel)

        async with httpx.AsyncClient(base_url=f"http://{server.http}", trust_env=False) as client:
            described = (await client.get("/v1/namespaces/default/groups/g")).json()

    assert (described["state"], described["leader_id"]) == ("Stable", joined.member_id)


async def test_sigterm_answers_who_waits_over_grpc_and_sends_streams_elsewhere(
    processes: Processes, tmp_path: Path
) -> None:
    server = Server(processes, tmp_path)
    async with grpc.aio.insecure_channel(server.grpc) as channel:
        await a_stable_member(channel)
        session = SessionClient(channel)
        parked = await session.send(join=a_join("i2"))
        waiting = asyncio.ensure_future(refused(stub(channel).JoinGroup(a_join("i3"))))
        await until_pending(channel)

        server.process.send(signal.SIGTERM)
        started = time.monotonic()
        told, answered = await asyncio.gather(waiting, session.answer_to(parked))
        ended = await session.until_ended()
        exit_code = await asyncio.to_thread(server.process.wait_for_exit)

    assert (told.status, told.code) == (grpc.StatusCode.UNAVAILABLE, "COORDINATOR_NOT_AVAILABLE")
    assert answered.error.code == "COORDINATOR_NOT_AVAILABLE"
    assert [event.WhichOneof("event") for event in session.news] == ["drain"]
    assert (ended, exit_code) == (grpc.StatusCode.OK, 0)
    assert time.monotonic() - started < 5  # they would have waited for 30
    await session.close()


async def until_pending(channel: grpc.aio.Channel) -> None:
    """Both newcomers wait for the first member to rejoin."""
    async with asyncio.timeout(10):
        while True:
            described = await admin(channel).DescribeGroup(admin_pb2.DescribeGroupRequest(**G))
            if sum(member.joined for member in described.members) == 2:
                return
            await asyncio.sleep(0.01)


async def test_a_port_that_is_taken_is_said_and_nothing_starts(processes: Processes, tmp_path: Path) -> None:
    server = Server(processes, tmp_path)
    options = ("--http", f"127.0.0.1:{free_port()}", "--grpc", server.grpc)

    second = processes.rota("serve", "--store", f"sqlite:///{tmp_path / 'other.db'}", *options)

    assert await asyncio.to_thread(second.wait_for_exit) == 1
    assert f"cannot listen on grpc://{server.grpc}" in second.output()
