"""A gRPC server that outlives calls of methods that it does not know.

grpcio decodes the name of a called method in the loop that accepts calls, outside of what handles an error of one call.
The first `:path` that is not UTF-8 ends the loop, and with it the server, for all callers. It takes no credentials, and
on the port for peers no secret either (grpcio 1.85.1, the newest release when this was written).

gRPC's core compares the paths of registered methods as bytes. So all of our methods are registered, and the other calls
are refused here before their names are decoded. This uses parts of grpcio that are not public: with a release that has
other parts, its own server is used.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import grpc
from grpc._cython import cygrpc  # type: ignore[attr-defined]

_UNKNOWN = "/unknown"
_PARTS = ("_MethodResolver", "_handle_rpc", "_schedule_rpc_coro")
_making = threading.Lock()


class _KnownMethods(cygrpc.AioServer):  # type: ignore[misc]
    """The parent asks here for the next call of a method that is not registered, and never receives one."""

    async def _request_call(self) -> Any:
        loop, refusals = asyncio.get_running_loop(), set[asyncio.Task[None]]()
        nothing = cygrpc._MethodResolver([], {})
        while True:
            call = await super()._request_call()
            refusal = cygrpc._handle_rpc(_UNKNOWN, nothing, (), call, loop, False)
            task = loop.create_task(cygrpc._schedule_rpc_coro(refusal, call, loop, _UNKNOWN))
            refusals.add(task)
            task.add_done_callback(refusals.discard)


def lasting_server(options: Sequence[tuple[str, Any]]) -> grpc.aio.Server:
    """A server that `add_methods` adds methods to."""
    if not all(hasattr(cygrpc, part) for part in _PARTS):
        return grpc.aio.server(options=options)
    with _making:
        former, cygrpc.AioServer = cygrpc.AioServer, _KnownMethods
        try:
            return grpc.aio.server(options=options)
        finally:
            cygrpc.AioServer = former


def add_methods(server: grpc.aio.Server, service: str, methods: dict[str, grpc.RpcMethodHandler[Any, Any]]) -> None:
    """Have the server answer these methods of a service."""
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
    server.add_registered_method_handlers(service, methods)
