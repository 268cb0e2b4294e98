"""HTTP and gRPC in one process: one coordinator behind both, and one way to go."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from rota.v1 import admin_pb2
from rota.v1 import coordinator_pb2 as pb
from tests.grpc.clients import G, SessionClient, a_join, a_stable_member, admin, refused, stub
from tests.grpc.test_grpc_server import NOT_SERVING, health_of
from tests.support.ports import free_port
from tests.support.processes import Process, Processes

pytestmark = pytest.mark.processes

GROUP = "/v1/namespaces/default/groups/g"
A_JOIN = {
    "group_instance_id": "i3",
    "protocol_type": "worker",
    "protocols": [{"name": "range"}],
    "session_timeout_ms": 30_000,
    "wait_ms": 30_000,
}


class Server:
    """`rota serve` with both transports, on a store in a folder of the test."""

    def __init__(self, processes: Processes, folder: Path, *more: str) -> None:
        self.http, self.grpc = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        store = f"sqlite:///{folder / 'rota.db'}"
        options = ("--store", store, "--http", self.http, "--grpc", self.grpc)
        self.process: Process = processes.rota("serve", *options, *more)
        self.process.wait_for_url(f"http://{self.http}/readyz")


async def test_sigterm_answers_parked_rpcs_and_sends_streams_elsewhere(processes: Processes, tmp_path: Path) -> None:
    server = Server(processes, tmp_path)
    async with grpc.aio.insecure_channel(server.grpc) as channel:
        await a_stable_member(channel)
        session = SessionClient(channel)
        parked = await session.send(join=a_join("i2"))
        waiting = asyncio.ensure_future(refused(stub(channel).JoinGroup(a_join("i3"))))
        await until_pending(channel)

        server.process.send(signal.SIGTERM)
        started = time.monotonic()
        reported, answered = await asyncio.gather(waiting, session.answer_to(parked))
        ended = await session.until_ended()
        exit_code = await asyncio.to_thread(server.process.wait_for_exit)

    assert (reported.status, reported.code) == (grpc.StatusCode.UNAVAILABLE, "COORDINATOR_NOT_AVAILABLE")
    assert answered.error.code == "COORDINATOR_NOT_AVAILABLE"
    assert [event.WhichOneof("event") for event in session.news] == ["drain"]
    assert (ended, exit_code) == (grpc.StatusCode.OK, 0)
    assert time.monotonic() - started < 30  # for so long they would have waited
    await session.close()


@pytest.mark.thorough
async def test_while_draining_both_ports_answer_then_end_together(processes: Processes, tmp_path: Path) -> None:
    server = Server(processes, tmp_path, "--drain-delay-ms", "2000")
    http = httpx.AsyncClient(base_url=f"http://{server.http}", timeout=30, trust_env=False)
    async with http, grpc.aio.insecure_channel(server.grpc) as channel:
        await a_stable_member(channel)
        session = SessionClient(channel)
        await session.ask(options=pb.SessionOptions())
        watch = admin(channel).WatchGroup(admin_pb2.WatchGroupRequest(**G, after_revision=0))
        events = asyncio.ensure_future(text_until_the_end(http, f"{GROUP}/events"))
        # The member does not rejoin, so that both newcomers wait.
        over_grpc = asyncio.ensure_future(refused(stub(channel).JoinGroup(a_join("i2"))))
        over_http = asyncio.ensure_future(http.post(f"{GROUP}/join", json=A_JOIN))
        await until_open(http, calls=2, streams=3)

        server.process.send(signal.SIGTERM)
        await asyncio.to_thread(server.process.wait_for_line, "draining")
        ready = await http.get("/readyz")
        health = await health_of(channel)
        described = await http.get(GROUP)
        described_too = await admin(channel).DescribeGroup(admin_pb2.DescribeGroupRequest(**G))
        early = over_grpc.done() or over_http.done() or session.ended is not None

        parked_http, parked_grpc, reported = await over_http, await over_grpc, await events
        ended = await session.until_ended()
        watch_ended = await code_at_the_end(watch)
        exit_code = await asyncio.to_thread(server.process.wait_for_exit)
    await session.close()

    assert (ready.status_code, health) == (503, NOT_SERVING)
    assert (described.status_code, described_too.state, early) == (200, "PreparingRebalance", False)
    assert (parked_http.status_code, parked_http.json()["code"]) == (503, "COORDINATOR_NOT_AVAILABLE")
    assert (parked_grpc.status, parked_grpc.code) == (grpc.StatusCode.UNAVAILABLE, "COORDINATOR_NOT_AVAILABLE")
    assert "event: server-drain" in reported
    assert [event.WhichOneof("event") for event in session.news] == ["drain"]
    assert (ended, watch_ended, exit_code) == (grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE, 0)


async def text_until_the_end(http: httpx.AsyncClient, path: str) -> str:
    async with http.stream("GET", path) as response:
        return "".join([text async for text in response.aiter_text()])


async def code_at_the_end(stream: Any) -> grpc.StatusCode:
    try:
        async for _ in stream:
            continue
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def until_open(http: httpx.AsyncClient, *, calls: int, streams: int) -> None:
    """Return once the server says that so many calls are parked and so many streams open, over both transports."""
    async with asyncio.timeout(60):
        while await gauges(http) != (calls, streams):
            continue  # each look is a round trip, which leaves the others their time


async def gauges(http: httpx.AsyncClient) -> tuple[float, float]:
    lines = (await http.get("/metrics")).text.splitlines()
    parked, streams = (
        sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))
        for name in ("rota_waiters{", "rota_event_streams ")
    )
    return parked, streams


async def until_pending(channel: grpc.aio.Channel) -> None:
    """Both newcomers wait for the first member to rejoin."""
    async with asyncio.timeout(60):
        while True:
            described = await admin(channel).DescribeGroup(admin_pb2.DescribeGroupRequest(**G))
            if sum(member.joined for member in described.members) == 2:
                return
            await asyncio.sleep(0.01)
