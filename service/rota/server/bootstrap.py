"""Wiring of a server: its store, coordinator and transports."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

from rota.core.access.budgets import Budgets
from rota.core.replica.ports import Liveness, LivenessUnavailable, StoreUnavailable
from rota.server.access.files import Reread
from rota.server.access.opening import open_guard
from rota.server.connections import room_for_peers
from rota.server.console.app import Console
from rota.server.grpc_server import answering, listen_over_grpc, reached_over_grpc_at
from rota.server.health import HealthCheck
from rota.server.http.app import HttpApi, create_app
from rota.server.http.bodies import bound_bodies
from rota.server.http.dependencies import no_fence_keys
from rota.server.http_server import CannotListen
from rota.server.observability.logs import bound_refusals
from rota.server.observability.metrics import Metrics
from rota.server.own_ports import NO_OWN_PORTS, OwnPorts
from rota.server.peer_secrets import new_peer_secret, read_peer_secrets
from rota.server.plugins import load_plugins
from rota.server.runtime.coordinator import LocalCoordinator, RoutedCoordinator
from rota.server.settings import Address, Settings
from rota.server.telemetry import ServerTelemetry
from rota.server.tls import ServerTls, TlsFiles, UnusableCertificate
from rota.storage.migrate import upgrade
from rota.storage.store import SqlStore
from rota.storage.urls import SqliteLocation, parse_store_url

if TYPE_CHECKING:
    # gRPC is not in the base install, which serves only the embedded store.
    from rota.fencing.signer import Signer
    from rota.server.grpc.server import GrpcServer
    from rota.server.peer.client import GrpcPeers

Secrets = Callable[[], Sequence[str]]
"""Returns the current shared secrets of replicas."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Services:
    """The started parts of a server process."""

    store: SqlStore
    coordinator: LocalCoordinator
    api: HttpApi
    grpc: GrpcServer | None
    metrics: Metrics
    health: HealthCheck


@asynccontextmanager
async def open_services(
    settings: Settings,
    url: str,
    tls: ServerTls | None = None,
    own: OwnPorts = NO_OWN_PORTS,
    peer_secret: str = "",
) -> AsyncIterator[Services]:
    """Open the store and start a coordinator on it; at the end of the block stop and close both.

    The embedded store is upgraded to this release first. A shared one is not, because replicas of another release may
    be running on it: `StoreRefused` names the command. `url` is this replica's address for others, `peer_secret` the
    shared secret of one supervisor's workers.
    """
    load_plugins()
    metrics = Metrics()
    _bound_process(settings.budgets, metrics)
    store = await _open_store(settings, metrics)
    try:
        if store.went_back:
            metrics.store_went_back(settings.shard_count)
        embedded = isinstance(store.location, SqliteLocation)
        secrets = _peer_secrets(settings, peer_secret)
        peer_tls = _peer_tls(settings)
        signer = _signer(settings)
        async with (
            _peers(secrets, peer_tls, embedded=embedded) as peers,
            _liveness(settings, store, metrics) as liveness,
        ):
            coordinator = LocalCoordinator(
                store,
                shard_count=settings.shard_count,
                limits=settings.limits,
                telemetry=ServerTelemetry(metrics),
                address=settings.advertise or url,
                lease_ms=settings.lease_ms,
                # The file lock of the open store proves that no former owner is running.
                steal=embedded,
                peers=peers,
                forward=settings.forward,
                liveness=liveness,
                sign=signer,
            )
            async with (
                _peer_server(coordinator, settings, secrets, peer_tls, embedded=embedded),
                open_guard(settings, store, metrics) as guard,
            ):
                served = RoutedCoordinator(coordinator) if peers else coordinator
                health = HealthCheck(coordinator, served.call, settings.critical_groups)
                metrics.serves(version("rota"), health.take_census)
                _report_certificates(metrics, clients=tls, peers=peer_tls)
                grpc = listen_over_grpc(served, guard, settings, metrics, tls, own)
                _report_addresses(coordinator, grpc, settings, tls, own)
                await coordinator.start()
                try:
                    async with answering(grpc):
                        fence_keys = signer.jwks if signer else no_fence_keys
                        api = create_app(
                            served,
                            settings.limits,
                            metrics=metrics,
                            fence_keys=fence_keys,
                            namespaces=store.namespaces,
                            guard=guard,
                            site=settings.site(url),
                        )
                        console = Console(served, store, metrics, api.draining, api.openapi, guard=guard)
                        api.fastapi.include_router(console.router())
                        yield Services(store, coordinator, api, grpc, metrics, health)
                finally:
                    await _stop(served)
    finally:
        await store.close()


def _bound_process(budgets: Budgets, metrics: Metrics) -> None:
    """Set the budgets that all parts of a process share."""
    lines = budgets.log_lines_per_s
    bound_refusals(lines.per_source, lines.in_all, partial(metrics.over_budget, "log_lines_per_s"))
    bound_bodies(budgets.unfinished_bodies, partial(metrics.over_budget, "unfinished_bodies"))


def _report_certificates(metrics: Metrics, **shown: ServerTls | None) -> None:
    for use, tls in shown.items():
        if tls is not None:
            metrics.certificate_shown(use, tls.validity)


def _report_addresses(
    coordinator: LocalCoordinator, grpc: GrpcServer | None, settings: Settings, tls: ServerTls | None, own: OwnPorts
) -> None:
    """Report addresses of this replica for clients, in addition to its HTTP URL."""
    coordinator.reached_at(
        grpc_address=reached_over_grpc_at(grpc, settings, tls) if grpc is not None else "",
        worker_http_port=own.http.port if own.http is not None else 0,
        worker_grpc_port=own.grpc.port if own.grpc is not None else 0,
    )


def open_tls(settings: Settings) -> ServerTls | None:
    """Return TLS for clients, if there is a certificate; raise `CannotListen`."""
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    optional = settings.tls_client_optional
    files = TlsFiles(settings.tls_cert_file, settings.tls_key_file, settings.tls_client_ca_file, optional)
    try:
        return ServerTls(files)
    except UnusableCertificate as error:
        raise CannotListen(f"tls: {error}") from error


def _peer_tls(settings: Settings) -> ServerTls | None:
    if settings.peer_tls_cert_file is None or settings.peer_tls_key_file is None:
        return None
    try:
        return ServerTls(TlsFiles(settings.peer_tls_cert_file, settings.peer_tls_key_file, settings.peer_tls_ca_file))
    except UnusableCertificate as error:
        raise CannotListen(f"peer_tls: {error}") from error


def _peer_secrets(settings: Settings, shared: str) -> Secrets:
    """Return the secrets of the file; empty with certificates alone.

    A replica without file and certificates shares a secret with the other workers of its supervisor.
    """
    path = settings.peer_secret_file
    if path is None:
        made = [] if settings.peer_tls_ca_file is not None else [shared or new_peer_secret()]
        return lambda: made
    # The settings have checked them, but the file may have been damaged since.
    try:
        file = Reread([path], lambda: read_peer_secrets(path))
    except ValueError as error:
        raise CannotListen(f"peer_secret_file {error}") from error
    return lambda: file.content


def _signer(settings: Settings) -> Signer | None:
    """Return the signer of fencing tokens, if there are keys; raise `CannotListen`."""
    if not settings.fence_keys:
        return None
    try:
        from rota.fencing.keys import InvalidKeys, read_keys
        from rota.fencing.signer import Signer
    except ImportError as error:
        raise CannotListen(f"signing is not installed ({error}): pip install 'rota[fencing]'") from error
    try:
        files = Reread(settings.fence_keys, lambda: read_keys(settings.fence_keys))
    except InvalidKeys as error:
        raise CannotListen(f"fence_keys: {error}") from error
    return Signer(lambda: files.content, settings.fence_token_ttl_ms // 1_000)


@asynccontextmanager
async def _peers(secrets: Secrets, tls: ServerTls | None, *, embedded: bool) -> AsyncIterator[GrpcPeers | None]:
    """Return the connections to the other replicas of a shared store; an embedded one has a single process."""
    if embedded:
        yield None
        return
    from rota.server.peer.client import GrpcPeers

    peers = GrpcPeers(secrets, tls.channel_credentials if tls is not None else None)
    try:
        yield peers
    finally:
        await peers.close()


@asynccontextmanager
async def _liveness(settings: Settings, store: SqlStore, metrics: Metrics) -> AsyncIterator[Liveness | None]:
    """Open the shared store of the members' last heartbeats. It may be unavailable at the start or fail later."""
    if settings.redis is None:
        yield None
        return
    from rota.server.liveness.redis import RedisLiveness

    liveness = RedisLiveness(settings.redis, incarnation=store.incarnation, on_unusable=metrics.liveness_unusable)
    try:
        try:
            await liveness.ping()
            metrics.liveness_answered()
        except LivenessUnavailable:
            metrics.liveness_failed("ping")
        yield liveness
    finally:
        await liveness.close()


@asynccontextmanager
async def _peer_server(
    coordinator: LocalCoordinator, settings: Settings, secrets: Secrets, tls: ServerTls | None, *, embedded: bool
) -> AsyncIterator[None]:
    """Serve the other replicas' calls at the advertised address until the shards are released."""
    if embedded:
        yield
        return
    from rota.server.peer.server import PeerServer

    server = PeerServer(
        coordinator,
        settings.peer.host,
        settings.peer.port,
        secrets,
        tls.grpc_credentials() if tls is not None else None,
        # With rules every peer must authenticate, because rules do not restrict peers.
        is_open=settings.peer_secret_file is None and settings.peer_tls_ca_file is None and not settings.is_guarded,
        budgets=settings.budgets,
        most_connections=room_for_peers(),
    )
    coordinator.reached_at(peer_address=str(Address(settings.peer.host, server.port)))
    await server.start()
    try:
        yield
    finally:
        await server.stop()


async def _open_store(settings: Settings, metrics: Metrics) -> SqlStore:
    location = parse_store_url(settings.store)
    if isinstance(location, SqliteLocation):
        location.path.parent.mkdir(parents=True, exist_ok=True)
        await upgrade(settings.store)
    # A write that hangs must time out well before the end of the lease that allowed it.
    write_timeout_ms = min(3_000, settings.lease_ms * 6 // 10)
    store = SqlStore(settings.store, write_timeout_ms=write_timeout_ms, on_terminated=metrics.gate_session_terminated)
    await store.open(settings.shard_count)
    return store


async def _stop(coordinator: LocalCoordinator | RoutedCoordinator) -> None:
    """Release the leases and stop. If the store is unavailable, the leases expire by themselves."""
    try:
        await coordinator.stop()
    except StoreUnavailable as error:
        _log.warning("the leases could not be released", extra={"error": str(error)})
