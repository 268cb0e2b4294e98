"""The floor of the gRPC benches: a `grpc.aio` server on uvloop that echoes messages, at the given port."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import uvloop

from bench.setting import HOST
from rota.protocol.limits import Limits
from rota.server.grpc.receiving import bounded_options

UNARY = "/bench.Echo/Unary"
STREAM = "/bench.Echo/Stream"


async def _unary(data: bytes, _context: Any) -> bytes:
    return data


async def _stream(messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
    async for message in messages:
        await context.write(message)


async def main(port: int) -> None:
    options = bounded_options(
        streams=1_000, message_bytes=Limits().request_max_bytes, keepalive_ms=30_000, keepalive_timeout_ms=10_000
    )
    server = grpc.aio.server(options=options)
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Unary": grpc.unary_unary_rpc_method_handler(_unary),
        "Stream": grpc.stream_stream_rpc_method_handler(_stream),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", handlers),))
    server.add_insecure_port(f"{HOST}:{port}")
    await server.start()
    print("listening", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(int(sys.argv[1])))
