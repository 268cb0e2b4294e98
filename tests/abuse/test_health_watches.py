"""Health and reflection, which each caller may use, and whose streams stay open for as long as a caller likes."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest

from tests.abuse.attackers import HOST, until
from tests.abuse.target import DEADLINE_S, MIB, Target
from tests.support.raw_http2 import RawHttp2

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="session")]

WATCH = "/grpc.health.v1.Health/Watch"
REFLECT = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
LARGE = "x" * (8 * MIB - 1_000)
LARGE_REQUESTS = {
    WATCH: HealthCheckRequest(service=LARGE).SerializeToString(),
    REFLECT: ServerReflectionRequest(file_containing_symbol=LARGE).SerializeToString(),
}
CONNECTIONS, STREAMS = 8, 1_000
OPEN_TO_ONE_SOURCE = 1_000


@pytest.mark.thorough
async def test_watches_of_strangers_harm_no_member(target: Target) -> None:
    """The watches of one source are bounded over all of its connections; a member's heartbeats go on meanwhile."""
    request = HealthCheckRequest().SerializeToString()
    async with (
        target.unharmed(60, f"{CONNECTIONS} connections with {STREAMS} health watches"),
        AsyncExitStack() as stack,
    ):
        opened = [await stack.enter_async_context(RawHttp2(HOST, target.grpc_port)) for _ in range(CONNECTIONS)]
        for number in range(CONNECTIONS * STREAMS):
            opened[number % CONNECTIONS].begin(WATCH, len(request), request)
            if number % 100 == 0:
                await target.still_serves()

        refused = CONNECTIONS * STREAMS - OPEN_TO_ONE_SOURCE
        await until(lambda: sum(len(raw.ended) for raw in opened) >= refused, DEADLINE_S)

        await target.still_serves()
        print(f"{CONNECTIONS * STREAMS - sum(len(raw.ended) for raw in opened)} watches are open")


@pytest.mark.thorough
@pytest.mark.parametrize("path", LARGE_REQUESTS)
async def test_no_stream_of_strangers_keeps_a_large_message(path: str, target: Target) -> None:
    """No name of a service has 8 MiB. Each stream stays open behind its message.

    Together the messages have 800 MiB. A starved server holds several of them while it refuses one after the other.
    """
    request = LARGE_REQUESTS[path]
    async with target.unharmed(12 * 8, f"100 streams of 8 MiB to {path}"), RawHttp2(HOST, target.grpc_port) as raw:
        for _ in range(100):
            raw.begin(path, len(request), request)
        await raw.until_ended(100)
        await target.still_serves()
