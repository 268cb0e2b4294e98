"""The gRPC server: services, health and reflection on one port, and how it goes away."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import lru_cache, partial
from ssl import PEM_cert_to_DER_cert
from typing import Any
from urllib.parse import unquote

import grpc
from grpc_health.v1 import health
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_reflection.v1alpha import reflection
from grpc_reflection.v1alpha._async import ReflectionServicer
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest

from rota.core.access.budgets import BUDGETS, Budgets
from rota.core.access.certificates import caller_of_certificate, read_certificate
from rota.core.access.rules import Caller
from rota.core.access.sources import NO_PROXIES, Proxies
from rota.grpc_polling import keep_polling
from rota.protocol.calls import ADMIN, COORDINATOR
from rota.protocol.errors import RejectedRequest
from rota.protocol.limits import Limits
from rota.server.access.guard import ADMIT_ALL, Guard, behind
from rota.server.access.identity import (
    NO_CREDENTIALS,
    NOTE,
    NOTE_MAX_CHARS,
    ORIGIN,
    RENEWAL_S,
    SEVERAL_CREDENTIALS,
    Credentials,
)
from rota.server.grpc.calls import ACCESS, Calls
from rota.server.grpc.receiving import ANY_NUMBER, Context, Receiver, bounded_options, client_of
from rota.server.grpc.roster import Roster, StreamedCoordinator
from rota.server.grpc.session import Session
from rota.server.grpc.watching import Watching
from rota.server.known_methods import add_methods, lasting_server
from rota.server.observability.metrics import Metrics
from rota.v1 import access_pb2, admin_pb2, coordinator_pb2

READINESS_INTERVAL_S = 0.1
SLACK_BYTES = 1024 * 1024
"""So that a message that is a little too large is refused by us, with a code that says why."""
STREAMS_PER_CONNECTION = 1_000

_NOTE_KEY = "rota-note"


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
        admission, guarded = guard or ADMIT_ALL, behind(guard, coordinator)
        self._coordinator = coordinator
        self._guard = guard
        self._proxies = proxies
        self._receiver = Receiver(budgets, guard, proxies, metrics)
        self._calls = Calls(guarded, limits, metrics, guard, admission, self._receiver)
        # Follows groups for members that were admitted.
        self._roster = Roster(coordinator, admission, self._receiver.turns)
        self._sessions: set[Session] = set()
        self._has_drained = False
        self._watching = Watching(self._calls)
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
        for service, methods in self._handlers().items():
            add_methods(self._server, service, methods)
        self._readiness: asyncio.Task[None] | None = None
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
        self._readiness = asyncio.create_task(self._report_readiness())
        await asyncio.sleep(0)  # The first report is there before the first question.
        await self._server.start()

    async def begin_drain(self) -> None:
        """From now on the health service says NOT_SERVING."""
        await self._health.enter_graceful_shutdown()

    async def drain(self) -> None:
        """Send all clients on streams to other servers. The coordinator's own drain answers their parked calls."""
        self._has_drained = True
        self._watching.drain()
        for session in tuple(self._sessions):
            session.drain()

    async def stop(self, grace_s: float) -> None:
        """Take no more calls, let those that are open end within the grace, and close."""
        if self._readiness is not None:
            self._readiness.cancel()
            await asyncio.wait((self._readiness,))
        await self.drain()
        await self._server.stop(grace_s)
        self._roster.stop()

    # --- the services ---------------------------------------------------------------------------------

    def _handlers(self) -> dict[str, dict[str, Any]]:
        """By service. Handlers take bytes: gRPC would answer a message that it cannot parse with INTERNAL."""
        by_service = defaultdict[str, dict[str, Any]](dict)
        for path, behaviour in self._calls.behaviours().items():
            _, service, name = path.split("/")
            by_service[service][name] = grpc.stream_unary_rpc_method_handler(self._entered(behaviour))
        for service, name, work in (
            (COORDINATOR, "Session", self._session),
            (ADMIN, "WatchGroup", self._watching.watch),
        ):
            behaviour = partial(self._calls.carry_out, work, name)
            by_service[service][name] = grpc.stream_stream_rpc_method_handler(self._entered(behaviour))
        open_to_all = self._receiver.open_to_all
        by_service[health.SERVICE_NAME] = {
            "Check": open_to_all(self._health.Check, HealthCheckRequest),
            "Watch": open_to_all(self._health.Watch, HealthCheckRequest),
        }
        modules: tuple[Any, ...] = (coordinator_pb2, admin_pb2, access_pb2)
        names = [each.full_name for module in modules for each in module.DESCRIPTOR.services_by_name.values()]
        shown = ReflectionServicer([*names, health.SERVICE_NAME, reflection.SERVICE_NAME])
        by_service[reflection.SERVICE_NAME] = {
            "ServerReflectionInfo": open_to_all(shown.ServerReflectionInfo, ServerReflectionRequest)
        }
        return by_service

    def _entered(self, behaviour: Callable[[Context], Awaitable[Any]]) -> Callable[[Any, Context], Awaitable[Any]]:
        """Authenticates the caller and runs the behaviour. The guarded coordinator authorizes it.

        To gRPC all rpcs are streams of requests, which `Receiver` receives.
        """

        async def enter(_requests: object, context: Context) -> Any:
            ORIGIN.set(client_of(context, self._proxies))
            if self._guard is not None:
                await self._guard.enter(credentials_of(context))
            return await behaviour(context)

        return enter

    async def _session(self, context: Context) -> RejectedRequest | None:
        counted = self._guard.streaming() if self._guard is not None else nullcontext()
        with counted, self._calls.metrics.streaming():
            session = Session(self._calls, self._roster, context)
            self._sessions.add(session)
            if self._has_drained:
                session.drain()
            ending = self._drain_before_expiry(session)
            try:
                return await session.run()
            finally:
                if ending is not None:
                    ending.cancel()
                self._sessions.discard(session)

    def _drain_before_expiry(self, session: Session) -> asyncio.TimerHandle | None:
        """A stream ends in order before its token does: the client opens the next one with its next token."""
        expires_at_ms = self._guard.current().caller.expires_at_ms if self._guard is not None else None
        if expires_at_ms is None:
            return None
        left_s = expires_at_ms / 1000 - time.time() - RENEWAL_S
        return asyncio.get_running_loop().call_later(max(0.0, left_s), session.drain)

    async def _report_readiness(self) -> None:
        """Set the health of all services whenever it changes: each call notifies all watches."""
        was_ready = None
        while True:
            ready, _ = self._coordinator.ready()
            if ready is not was_ready:
                was_ready = ready
                status = HealthCheckResponse.SERVING if ready else HealthCheckResponse.NOT_SERVING
                for service in ("", COORDINATOR, ADMIN, ACCESS):
                    await self._health.set(service, status)
            await asyncio.sleep(READINESS_INTERVAL_S)


def credentials_of(context: Context) -> Credentials:
    """The `authorization` metadata, and the subject of the connection's certificate."""
    authorization = b""
    for key, value in context.invocation_metadata() or ():
        if key == "authorization":
            if authorization:
                return SEVERAL_CREDENTIALS
            authorization = value.encode() if isinstance(value, str) else bytes(value)
        elif key == _NOTE_KEY and isinstance(value, str):
            NOTE.set(unquote(value)[:NOTE_MAX_CHARS])
    shown = tuple(context.auth_context().get("x509_pem_cert", ()))
    certificate = _caller_of(shown[0]) if len(shown) == 1 else None
    if not authorization and certificate is None:
        return NO_CREDENTIALS
    return Credentials(authorization, certificate)


@lru_cache(maxsize=1_000)
def _caller_of(pem: bytes) -> Caller | None:
    """The caller that a certificate names. gRPC's own list of its names does not say of which kind each one is."""
    try:
        return caller_of_certificate(read_certificate(PEM_cert_to_DER_cert(pem.decode("ascii"))))
    except ValueError:
        return None
