"""The gRPC server: services, health and reflection on one port, and how it goes away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc
from grpc_reflection.v1alpha._async import ReflectionServicer

from rota.access.budgets import BUDGETS, Budgets
from rota.access.sources import NO_PROXIES, Proxies
from rota.api.access.guard import ADMIT_ALL, Guard, behind
from rota.api.access.identity import ORIGIN, RENEWAL_S
from rota.api.grpc.bounds import ANY_NUMBER, bounded_options
from rota.api.grpc.calls import Calls, Context, client_of
from rota.api.grpc.credentials import credentials_of
from rota.api.grpc.failures import abort, failure_of, traced
from rota.api.grpc.inquiries import ACCESS, Inquiries
from rota.api.grpc.ports import StreamedCoordinator
from rota.api.grpc.receiving import Receiver
from rota.api.grpc.roster import Roster
from rota.api.grpc.session import OPERATION, Session
from rota.api.grpc.watching import Watching
from rota.api.known_methods import add_methods, lasting_server
from rota.grpc_polling import keep_polling
from rota.observability.metrics import Metrics
from rota.protocol.calls import ADMIN, COORDINATOR
from rota.protocol.errors import RejectedRequest
from rota.protocol.limits import Limits
from rota.v1 import access_pb2, admin_pb2, coordinator_pb2

READINESS_INTERVAL_S = 0.1
SLACK_BYTES = 1024 * 1024
"""So that a message that is a little too large is refused by us, with a code that says why."""

STREAMS_PER_CONNECTION = 1_000

_NOT_COUNTED = nullcontext()

_SERVICES = ("", COORDINATOR, ADMIN, ACCESS)


class CannotBind(Exception):
    """The address is taken, or not ours."""


class GrpcServer:
    """Serves a coordinator on the running event loop.

    When the process is to end: `begin_drain`, `drain`, the coordinator's own `drain`, and `stop`, in this order.
    """

    def __init__(
        self,
        coordinator: StreamedCoordinator,
        limits: Limits | None = None,
        *,
        guard: Guard | None = None,
        metrics: Metrics | None = None,
        shares_port: bool = False,
        proxies: Proxies = NO_PROXIES,
        budgets: Budgets = BUDGETS,
        most_connections: int = ANY_NUMBER,
    ) -> None:
        limits, metrics = limits or Limits(), metrics or Metrics()
        self._coordinator = coordinator
        self._guard = guard
        guarded = behind(guard, coordinator)
        self._receiver = Receiver(budgets, guard, proxies, metrics)
        self._calls = Calls(guarded, limits, metrics, guard or ADMIT_ALL, proxies, self._receiver.message)
        # Follows groups for members that were admitted.
        self._roster = Roster(coordinator, self._receiver.turns)
        self._sessions: set[Session] = set()
        self._drained = asyncio.Event()
        admission = self._calls.admission
        self._watching = Watching(guarded, limits, metrics, self._drained, admission, self._receiver.message)
        self._health = health.aio.HealthServicer()
        keep_polling()
        options = bounded_options(
            streams=STREAMS_PER_CONNECTION,
            message_bytes=limits.request_max_bytes + SLACK_BYTES,
            keepalive_ms=30_000,
            keepalive_timeout_ms=10_000,
            most_connections=most_connections,
        )
        # Two servers never share a port unawares.
        self._server = lasting_server([*options, ("grpc.so_reuseport", int(shares_port))])
        for service, methods in (self._handlers() | self._handlers_of_libraries()).items():
            add_methods(self._server, service, methods)
        self._readiness: asyncio.Task[None] | None = None
        self._was_ready: bool | None = None
        self.address = ""
        """Where it listens, once it does: `HOST:PORT`."""

    async def start(self, host: str, port: int = 0, credentials: grpc.ServerCredentials | None = None) -> None:
        """Listen and answer; see `listen`."""
        self.address = self.listen(host, port, credentials)
        await self.answer()

    def listen(self, host: str, port: int = 0, credentials: grpc.ServerCredentials | None = None) -> str:
        """Where it listens, at any free port where 0 is asked for, with TLS if there are credentials.

        May be called for several addresses, before `answer`. Raises `CannotBind`.
        """
        bracketed = f"[{host}]" if ":" in host else host
        address = f"{bracketed}:{port}"
        try:
            if credentials is None:
                bound = self._server.add_insecure_port(address)
            else:
                bound = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise CannotBind("the address is taken, or not ours") from error
        return f"{bracketed}:{bound}"

    async def answer(self) -> None:
        """Begin to answer where it listens."""
        await self._set_readiness()
        await self._server.start()
        self._readiness = asyncio.create_task(self._keep_telling_readiness())

    async def begin_drain(self) -> None:
        """From now on the health service says NOT_SERVING."""
        await self._end_readiness()
        await self._health.enter_graceful_shutdown()

    async def drain(self) -> None:
        """Send all clients on streams to other servers. The coordinator's own drain answers their parked calls."""
        self._drained.set()
        for session in tuple(self._sessions):
            session.drain()

    async def stop(self, grace_s: float) -> None:
        """Take no more calls, let those that are open end within the grace, and close."""
        await self._end_readiness()
        await self.drain()
        await self._server.stop(grace_s)
        self._roster.stop()

    # --- the services ---------------------------------------------------------------------------------

    def _handlers_of_libraries(self) -> dict[str, dict[str, grpc.RpcMethodHandler[bytes, bytes]]]:
        """Health and reflection, for all callers: they do not receive more of a message than others do."""
        names = [d.full_name for module in (coordinator_pb2, admin_pb2, access_pb2) for d in _services_of(module)]
        shown = ReflectionServicer([*names, health.SERVICE_NAME, reflection.SERVICE_NAME])
        services: Any = _Services()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, services)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(shown, services)  # type: ignore[no-untyped-call]
        return {service: self._receiver.handlers(handlers) for service, handlers in services.handlers.items()}

    def _handlers(self) -> dict[str, dict[str, grpc.RpcMethodHandler[bytes, bytes]]]:
        """By service. Handlers take bytes: gRPC would answer a message that it cannot parse with INTERNAL."""
        by_service: dict[str, dict[str, grpc.RpcMethodHandler[bytes, bytes]]] = {
            COORDINATOR: {},
            ADMIN: {},
            ACCESS: {},
        }
        inquiries = Inquiries(self._calls, self._guard)
        for path, behaviour in (self._calls.behaviours() | inquiries.behaviours()).items():
            _, service, name = path.split("/")
            by_service[service][name] = grpc.stream_unary_rpc_method_handler(self._entered(behaviour))
        watch = self._entered(self._watching.watch)
        by_service[ADMIN]["WatchGroup"] = grpc.stream_stream_rpc_method_handler(watch)
        by_service[COORDINATOR]["Session"] = grpc.stream_stream_rpc_method_handler(self._session)
        return by_service

    def _entered(self, behaviour: Callable[[Context], Awaitable[Any]]) -> Callable[[Any, Context], Awaitable[Any]]:
        """Authenticates the caller and runs the behaviour. The guarded coordinator authorizes it.

        To gRPC all rpcs are streams of requests, which `Receiver` receives.
        """

        async def enter(_requests: object, context: Context) -> Any:
            await self._enter(context)
            return await behaviour(context)

        return enter

    async def _enter(self, context: Context) -> None:
        if self._guard is not None:
            ORIGIN.set(client_of(context, self._calls.proxies))
            await self._guard.enter(credentials_of(context))

    async def _session(self, _requests: object, context: Context) -> None:
        """One coroutine: each that a stream waits in is memory for as long as it is open."""
        await self._enter(context)
        counted = self._guard.streaming() if self._guard is not None else _NOT_COUNTED
        try:
            with counted, self._calls.metrics.streaming():
                messages = self._receiver.session(context, self._calls.admission)
                session = Session(self._calls, self._roster, context, messages)
                self._sessions.add(session)
                if self._drained.is_set():
                    session.drain()
                ending = self._end_with_proof(session)
                try:
                    failure = await traced(session.run(), OPERATION)
                finally:
                    if ending is not None:
                        ending.cancel()
                    self._sessions.discard(session)
        except RejectedRequest as rejected:
            failure = failure_of(rejected)
        if failure is not None:
            self._calls.metrics.request_answered(OPERATION, failure.code)
            await abort(context, failure)

    def _end_with_proof(self, session: Session) -> asyncio.TimerHandle | None:
        """A stream ends in order before its token does: the client opens the next one with its next token."""
        expires_at_ms = self._guard.current().caller.expires_at_ms if self._guard is not None else None
        if expires_at_ms is None:
            return None
        left_s = expires_at_ms / 1000 - time.time() - RENEWAL_S
        return asyncio.get_running_loop().call_later(max(0.0, left_s), session.drain)

    # --- health ---------------------------------------------------------------------------------------

    async def _keep_telling_readiness(self) -> None:
        while True:
            await asyncio.sleep(READINESS_INTERVAL_S)
            await self._set_readiness()

    async def _set_readiness(self) -> None:
        ready, _ = self._coordinator.ready()
        if ready is self._was_ready:
            return  # Each call notifies all watches.
        self._was_ready = ready
        for service in _SERVICES:
            await self._health.set(service, HealthCheckResponse.SERVING if ready else HealthCheckResponse.NOT_SERVING)

    async def _end_readiness(self) -> None:
        task, self._readiness = self._readiness, None
        if task is not None:
            task.cancel()
            # Awaiting it would take our own cancellation for its.
            await asyncio.wait((task,))
            if not task.cancelled():
                task.result()


class _Services:
    """Where the libraries add their services: a server of ours that keeps them for now."""

    def __init__(self) -> None:
        self.handlers: dict[str, dict[str, Any]] = {}

    def add_generic_rpc_handlers(self, _handlers: object) -> None:
        """The same come by the other way, which names their service."""

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        self.handlers[service] = handlers


def _services_of(module: Any) -> Any:
    return module.DESCRIPTOR.services_by_name.values()
