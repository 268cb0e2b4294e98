"""Behind a proxy that shares connections between its callers, each caller gets the answer to its own request."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

import pytest
import pytest_asyncio
from starlette.types import Receive, Scope, Send

from rota.api.http.app import HttpApi, create_app
from rota.server.http_server import HttpServer, listen
from rota.server.settings import Address
from tests.deploy.proxies import Proxy
from tests.fuzz.plants import PLANTS
from tests.http.odd_requests import Answer, OddRequest, is_second, odd_request, second_request, take_answer
from tests.http.scripted import ScriptedCoordinator
from tests.support.forwarding_proxy import ForwardingProxy, forwarding
from tests.support.processes import Processes

SEED = 20_261_130
PACE_S = 0.2
"""A proxy may wait for the rest of an odd request. The second caller does not wait for that."""


@dataclass
class Server:
    """An API whose connections are those of a proxy; keeps from which of them each second caller's request came."""

    api: HttpApi
    port: int = 0
    seconds: list[int] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path", "").startswith("/v1/second/"):
            self.seconds.append(scope["client"][1])
        await self.api(scope, receive, send)


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    bound = listen(Address("127.0.0.1", 0))
    found = Server(create_app(ScriptedCoordinator()), bound.getsockname()[1])
    http = HttpServer(found, [bound], drain_timeout_ms=1_000, member_calls=found.api.member_calls)
    serving = asyncio.create_task(http.run_until_stopped())
    yield found
    http.stop()
    await serving


async def wrong_answers(port: int, numbers: range) -> dict[int, str]:
    """What was wrong, by the number of the odd request. A second caller's request follows each of them."""
    wrong: dict[int, str] = {}
    for number in numbers:
        random = Random(f"{SEED}:{number}")
        request = next(each for each in iter(partial(odd_request, random), None) if each.is_whole)
        with socket.socket() as attacker, socket.socket() as second:
            await receive_one(attacker, port, request)
            answer = await answer_to_second(second, port, number)
        if answer is None or not is_second(answer, number):
            wrong[number] = f"the second caller has {answer} behind {request.data!r}"
    return wrong


async def receive_one(plug: socket.socket, port: int, request: OddRequest) -> None:
    """Send an odd request, and wait until its answer is whole, its connection ends, or the pace is up.

    Where it ends is for the proxy to say: if that takes the body for a request, both are this caller's own.
    """
    loop, received = asyncio.get_running_loop(), b""
    plug.setblocking(False)
    await loop.sock_connect(plug, ("127.0.0.1", port))
    with suppress(OSError, TimeoutError, AssertionError):
        async with asyncio.timeout(PACE_S):
            for part in request.parts:
                await loop.sock_sendall(plug, part)
                await asyncio.sleep(0)
            while take_answer(received, to_head=request.is_head) is None:
                if not (part := await loop.sock_recv(plug, 65_536)):
                    break
                received += part


async def answer_to_second(plug: socket.socket, port: int, number: int) -> Answer | None:
    """The first answer to the second caller's request; None if its connection ends without one."""
    loop, received = asyncio.get_running_loop(), b""
    plug.setblocking(False)
    async with asyncio.timeout(30):
        await loop.sock_connect(plug, ("127.0.0.1", port))
        await loop.sock_sendall(plug, second_request(number))
        while (taken := take_answer(received, to_head=False)) is None:
            if not (part := await loop.sock_recv(plug, 65_536)):
                return None
            received += part
        return taken[0]


async def checked(name: str, port: int, server: Server, numbers: range) -> None:
    assert await wrong_answers(port, numbers) == {}

    connections = len(set(server.seconds))
    print(f"{name}: {len(numbers):,} odd requests, {len(server.seconds):,} second callers, {connections:,} connections")
    assert len(server.seconds) == len(numbers)
    # Otherwise the second callers' requests would stand behind nothing.
    assert connections < len(numbers) * 0.9


async def test_each_caller_has_its_answer_behind_a_plain_proxy(server: Server) -> None:
    async with forwarding(server.port) as proxy:
        await checked("a plain proxy", proxy.port, server, range(300))

    print_counts(proxy)
    assert proxy.forwarded > 300


def print_counts(proxy: ForwardingProxy) -> None:
    print(
        f"forwarded {proxy.forwarded:,}, rejected {proxy.rejected:,}, {proxy.connections:,} connections to the server"
    )


@pytest.mark.thorough
async def test_each_of_many_callers_has_its_answer(server: Server) -> None:
    async with forwarding(server.port) as proxy:
        await checked("a plain proxy", proxy.port, server, range(1_000, 6_000))

    print_counts(proxy)


async def test_a_planted_parser_of_bodies_harms_the_second_caller(server: Server) -> None:
    with PLANTS["a_body_that_is_the_next_request"].planted():
        async with forwarding(server.port) as proxy:
            wrong = await wrong_answers(proxy.port, range(150))

    assert any("DELETE /v1/hidden" in each for each in wrong.values())


def with_one_server(sample: str) -> str:
    """One worker, one server behind it, and connections that all callers share; no health check takes one of them."""
    sample = sample.replace("worker_processes auto", "worker_processes 1").replace(
        "http-reuse safe", "http-reuse always"
    )
    sample = re.sub(r"server rota-[23][: ].*", "", sample)
    sample = re.sub(r"(rota-1:\d+) rota-2:\d+ rota-3:\d+", r"\1", sample)
    sample = re.sub(r"health_\w+ .*", "", sample)
    return re.sub(r"(server rota-1 rota-1:8080) check", r"\1", sample)


@pytest.mark.processes
@pytest.mark.thorough
@pytest.mark.parametrize("name", ["nginx", "caddy", "haproxy"])
async def test_each_caller_has_its_answer_behind_a_sample(
    name: str, server: Server, processes: Processes, tmp_path: Path
) -> None:
    proxy = Proxy(name, processes, tmp_path, http=server.port, grpc=server.port, edit=with_one_server)

    await checked(name, proxy.http, server, range(500))
