"""Callers without credentials that attack a server: `python -m bench.attackers ATTACK PORT GRPC_PORT REVIEW_PORT`."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

import grpc

from rota.protocol.calls import COORDINATOR
from rota.v1 import coordinator_pb2 as pb
from tests.access.issuers import Signer
from tests.support.raw_http2 import RawHttp2

HOST = "127.0.0.1"
BEGUN = "the attack has begun"
CLUSTER = "https://cluster.example"
MIB = 1024 * 1024
AT_ONCE = 8
SILENT = 3_000
FULL = 100
READ_BYTES = 64 * 1024

_JOIN = "/v1/namespaces/default/groups/g/join"
_TRAILERS = b"POST /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
_KEYS = b"{" + b",".join(b'"%d":1' % n for n in range(750_000)) + b"}"
_LARGE = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (
    _JOIN.encode(),
    len(_KEYS),
)
_REQUESTS = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 7_500
_NOISE = b"GET /v1/namespaces/n%d/groups/g HTTP/1.1\r\nHost: x\r\nUpgrade: x\r\nAuthorization: Bearer x%d\r\n\r\n"


async def trailers(port: int, _grpc_port: int, _review_port: int) -> None:
    """Trailers without end (H2)."""
    await _forever(lambda: _pour(port, _TRAILERS, b"x: y\r\n" * 10_000))


async def large_bodies(port: int, _grpc_port: int, _review_port: int) -> None:
    """Bodies of 7 MB of small keys (H4)."""
    await _forever(lambda: _ask(port, _LARGE + _KEYS))


async def heartbeats(_port: int, grpc_port: int, _review_port: int) -> None:
    """Messages of heartbeats for 10,000 groups (H4, H15)."""
    groups = [pb.GroupHeartbeat(namespace=f"n{number}", group_id="g") for number in range(10_000)]
    message = pb.HeartbeatManyRequest(groups=groups).SerializeToString()
    async with grpc.aio.insecure_channel(f"{HOST}:{grpc_port}") as channel:
        call: Any = channel.unary_unary(f"/{COORDINATOR}/HeartbeatMany")
        await _forever(lambda: call(message))


async def unfinished_rpcs(_port: int, grpc_port: int, _review_port: int) -> None:
    """60 rpcs of 8 MiB without their last byte, half of them of a service that is open to all (H9)."""
    async with RawHttp2(HOST, grpc_port) as raw:
        for _ in range(30):
            for path in (f"/{COORDINATOR}/JoinGroup", "/grpc.health.v1.Health/Check"):
                raw.begin(path, 8 * MIB, b"x" * (8 * MIB - 1))
        print(BEGUN, flush=True)
        await asyncio.Event().wait()


async def invented_tokens(port: int, _grpc_port: int, review_port: int) -> None:
    """JWTs that name the cluster and are signed by another key (H10). The cluster's API server is here as well."""
    cluster, invented = Signer(CLUSTER), Signer(CLUSTER)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            review = json.dumps({"status": {"authenticated": False}})
            body = (review if head.startswith(b"POST") else cluster.jwks()).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            await writer.drain()
        writer.close()

    numbers = iter(range(sys.maxsize))
    head = b"GET /v1/namespaces/default/groups/g HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n\r\n"
    async with await asyncio.start_server(answer, HOST, review_port):
        await _forever(lambda: _ask(port, head % invented.token(number=next(numbers)).encode()))


async def silence(port: int, grpc_port: int, _review_port: int) -> None:
    """Connections that send nothing, to both ports, opened again where they are closed (H13)."""
    free = asyncio.Semaphore(SILENT)

    async def hold(target: int) -> None:
        async with free:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection(HOST, target)
                await reader.read()
                writer.close()

    print(BEGUN, flush=True)
    async with asyncio.TaskGroup() as tasks:
        while True:
            for target in (port, grpc_port) * 5:
                tasks.create_task(hold(target))
            await asyncio.sleep(0.01)


async def pipelines(port: int, _grpc_port: int, _review_port: int) -> None:
    """Connections full of requests, of which no answer is read."""

    async def hold() -> None:
        _, writer = await asyncio.open_connection(HOST, port)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        with suppress(OSError):
            writer.write(_REQUESTS)
            await asyncio.Event().wait()

    print(BEGUN, flush=True)
    await asyncio.gather(*(hold() for _ in range(FULL)))


async def noise(port: int, _grpc_port: int, _review_port: int) -> None:
    """Requests that each ask for a line in the log (H15)."""
    numbers = iter(range(sys.maxsize))
    await _forever(lambda: _ask(port, _NOISE % (next(numbers), next(numbers))))


ATTACKS: dict[str, Callable[[int, int, int], Coroutine[Any, Any, None]]] = {
    each.__name__: each
    for each in (trailers, pipelines, large_bodies, heartbeats, unfinished_rpcs, invented_tokens, silence, noise)
}


async def _forever(attack: Callable[[], Awaitable[object]]) -> None:
    """A few at a time, again and again, whatever becomes of them."""
    print(BEGUN, flush=True)

    async def repeat() -> None:
        while True:
            with suppress(OSError, asyncio.IncompleteReadError, grpc.aio.AioRpcError):
                await attack()
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(repeat())


async def _ask(port: int, request: bytes) -> None:
    """Send it, and read the beginning of the answer."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(request)
        await reader.readexactly(12)
    finally:
        writer.close()


async def _pour(port: int, head: bytes, more: bytes) -> None:
    """Send more and more until the server closes the connection."""
    _, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(head)
        while True:
            writer.write(more)
            await writer.drain()
            await asyncio.sleep(0)
    finally:
        writer.close()


if __name__ == "__main__":
    asyncio.run(ATTACKS[sys.argv[1]](*map(int, sys.argv[2:])))
