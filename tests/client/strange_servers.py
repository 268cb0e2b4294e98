"""Servers that are no coordinators: they refuse, drop, keep silent, or speak something else."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from typing import TypeAlias

import grpc

Serve: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """The port of a server that treats each connection so until the block is left."""
    connections: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            with suppress(OSError):
                await serve(reader, writer)
        finally:
            writer.close()
            connections.discard(task)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tuple(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def never_answering(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    while await reader.read(65_536):
        pass


async def answering_404(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(65_536)
    writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\nconnection: close\r\n\r\nnone")
    await writer.drain()


async def answering_garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(65_536)
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 7\r\nconnection: close\r\n\r\n"
    writer.write(head + b"no gzip")
    await writer.drain()


@contextmanager
def dropping_packets() -> Iterator[int]:
    """A port with a full queue of connections: Linux drops the packets of clients that connect."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            with suppress(BlockingIOError):
                client.connect(server.getsockname())
        yield server.getsockname()[1]


@asynccontextmanager
async def another_grpc_program(code: grpc.StatusCode) -> AsyncIterator[str]:
    """The address of a server that answers each call with this status; with OK, by bytes that are no message."""

    async def unary(_request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        if code is not grpc.StatusCode.OK:
            await context.abort(code, "says the mesh", (("grpc-status-details-bin", b"\xff\xff"),))
        return b"\xff\xff\xff"

    async def stream(messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        await anext(aiter(messages))
        await context.write(await unary(b"", context))

    class Handler(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
            if details.method.endswith("/Session"):
                return grpc.stream_stream_rpc_method_handler(stream)
            return grpc.unary_unary_rpc_method_handler(unary)

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)
