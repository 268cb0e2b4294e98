"""gRPC in a server process: its listener, and its address."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rota.core.access.sources import Proxies
from rota.server.access.guard import Guard
from rota.server.connections import room_for_grpc
from rota.server.http_server import CannotListen
from rota.server.observability.metrics import Metrics
from rota.server.own_ports import OwnPorts
from rota.server.settings import Address, Settings
from rota.server.tls import ServerTls

if TYPE_CHECKING:
    # gRPC is not in the base install, which serves only the embedded store.
    from rota.server.grpc.roster import StreamedCoordinator
    from rota.server.grpc.server import GrpcServer


def listen_over_grpc(
    coordinator: StreamedCoordinator,
    guard: Guard | None,
    settings: Settings,
    metrics: Metrics,
    tls: ServerTls | None,
    own: OwnPorts,
) -> GrpcServer | None:
    """Start the gRPC API without answering yet, if configured; raise `CannotListen`."""
    if settings.grpc is None:
        return None
    try:
        from rota.server.grpc.server import CannotBind, GrpcServer
    except ImportError as error:
        raise CannotListen(f"gRPC is not installed ({error}): pip install 'rota[grpc]'") from error

    server = GrpcServer(
        coordinator,
        settings.limits,
        guard=guard,
        metrics=metrics,
        shares_port=settings.workers > 1,
        proxies=Proxies(settings.trusted_proxies),
        budgets=settings.budgets,
        most_connections=room_for_grpc(),
    )
    credentials = tls.grpc_credentials() if tls is not None else None
    for address in filter(None, (own.grpc, settings.grpc)):
        try:
            server.address = server.listen(address.host, address.port, credentials)
        except CannotBind as error:
            raise CannotListen(f"cannot listen on grpc://{address}: {error}") from error
    return server


@asynccontextmanager
async def answering(server: GrpcServer | None) -> AsyncIterator[None]:
    if server is None:
        yield
        return
    await server.answer()
    try:
        yield
    finally:
        await server.stop(0)


def reached_over_grpc_at(server: GrpcServer, settings: Settings, tls: ServerTls | None) -> str:
    """Return the URL for others: at the host that HTTP advertises, unless another host is configured."""
    if settings.advertise_grpc is not None:
        return settings.advertise_grpc
    bound = Address.parse(server.address)
    host = (urlsplit(settings.advertise).hostname if settings.advertise else None) or bound.host
    return f"{'grpcs' if tls else 'grpc'}://{Address(host, bound.port)}"
