"""The life of a server process: start, serve, drain, stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from typing import Any

from rota.core.access.sources import Proxies
from rota.core.replica.ports import StoreRefused, StoreUnavailable
from rota.server.bootstrap import Services, open_services, open_tls
from rota.server.connections import CONNECTIONS_OF_PROBES, Connections, allow_connections, room_for_http
from rota.server.http.probes import ProbesOnly
from rota.server.http_server import CannotListen, HttpServer, listen, url_of
from rota.server.large import begin_reading
from rota.server.observability.logs import configure_logging
from rota.server.own_ports import NO_OWN_PORTS, OwnPorts
from rota.server.proxies import TrustedProxies
from rota.server.retention import count_lines, delete_old_lines, note_retention
from rota.server.settings import Settings
from rota.server.telemetry import watch_loop_lag
from rota.server.tls import ServerTls
from rota.server.tracing import traced

UPKEEP_INTERVAL_SECONDS = 3 * 3_600.0
_HEALTH_INTERVAL_SECONDS = 10.0
_FAILING_MS = 60_000
"""Duration of a store's failure before the process is suspected. A failover of Postgres is shorter."""

_log = logging.getLogger(__name__)


class ServerFailed(Exception):
    """The server could not start, or had to stop; the message is for its operator."""


def run(settings: Settings, serving: Callable[[Settings], Coroutine[Any, Any, None]] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code. A second signal ends the process at once."""
    configure_logging(settings.log_format, settings.log_level)
    _spare_the_collector()
    allow_connections()
    try:
        with traced(settings.otlp), asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run((serving or serve)(settings))
    except (CannotListen, ServerFailed) as failed:
        print(f"rota: {failed}", file=sys.stderr)
        return 1
    return 0


async def serve(
    settings: Settings, *, stop: asyncio.Event | None = None, own: OwnPorts = NO_OWN_PORTS, peer_secret: str = ""
) -> None:
    """Serve until `stop` is set or a signal sets it, then drain; raises `ServerFailed`."""
    stop = stop or asyncio.Event()
    try:
        with Signals(stop), ExitStack() as sockets:
            shared = settings.workers > 1
            bound = [
                sockets.enter_context(listen(address, shared=shared))
                for address in (settings.http, own.http)
                if address
            ]
            probed = sockets.enter_context(listen(settings.probes, shared=shared)) if settings.probes else None
            tls = open_tls(settings)
            urls = [url_of(each, "https" if tls else "http") for each in bound]
            async with open_services(settings, urls[0], tls, own, peer_secret) as services:
                servers = _servers(services, settings, tls, bound, probed)
                for url in urls:
                    _log.info("listening", extra={"url": url, "replica_id": services.coordinator.replica_id})
                if services.grpc is not None:
                    for address in filter(None, (services.grpc.address, own.grpc)):
                        _log.info("listening", extra={"url": f"{'grpcs' if tls else 'grpc'}://{address}"})
                await _serve_until(stop, services, servers, settings)
    except (CannotListen, StoreRefused, StoreUnavailable) as error:
        raise ServerFailed(str(error)) from error


def _servers(
    services: Services,
    settings: Settings,
    tls: ServerTls | None,
    bound: list[socket.socket],
    probed: socket.socket | None,
) -> list[HttpServer]:
    """Return the API's server, and that of the probes if they have their own address."""
    context = tls.context() if tls is not None else None
    proxies = services.api.member_calls.proxies = Proxies(settings.trusted_proxies)
    app = TrustedProxies(services.api, proxies) if proxies.networks else services.api
    counted = Connections(
        settings.budgets, room_for_http(beside_grpc=settings.grpc is not None), services.metrics.over_budget
    )
    drain_ms = settings.drain_timeout_ms
    servers = [
        HttpServer(
            app,
            bound,
            drain_timeout_ms=drain_ms,
            tls=context,
            connections=counted,
            member_calls=services.api.member_calls if settings.http_direct else None,
        )
    ]
    if probed is not None:
        few = Connections(settings.budgets, CONNECTIONS_OF_PROBES, services.metrics.over_budget)
        servers.append(HttpServer(ProbesOnly(services.api), [probed], drain_timeout_ms=drain_ms, connections=few))
        _log.info("listening for probes", extra={"url": url_of(probed)})
    return servers


async def _serve_until(
    stop: asyncio.Event, services: Services, servers: Sequence[HttpServer], settings: Settings
) -> None:
    # Start its thread now, because it could not start without free memory.
    await begin_reading(lambda: None)
    async with asyncio.TaskGroup() as tasks:
        stopped = tasks.create_task(stop.wait())
        serving = [tasks.create_task(server.run_until_stopped()) for server in servers]
        # A server without timers or commits would seem alive but not work.
        running = tasks.create_task(services.coordinator.watch_over())
        upkeep = [
            tasks.create_task(watch_loop_lag(services.metrics)),
            tasks.create_task(_maintain(services, settings)),
            tasks.create_task(_watch_health(services)),
            tasks.create_task(count_lines(services.store, services.metrics)),
            tasks.create_task(_report_ready(services)),
            tasks.create_task(services.health.run()),
        ]
        await asyncio.wait((stopped, running, *serving), return_when=asyncio.FIRST_COMPLETED)
        if not any(task.done() for task in serving):
            await _drain(services, settings)
        servers[0].stop()
        if services.grpc is not None:
            await services.grpc.stop(settings.drain_timeout_ms / 1000)
        # One after the other: probes are answered until the API has stopped.
        for server, ended in zip(servers, serving, strict=True):
            server.stop()
            await ended
        for task in (*upkeep, stopped, running):
            task.cancel()
    if not stop.is_set():
        raise ServerFailed("the HTTP server ended by itself; see the log")


async def _drain(services: Services, settings: Settings) -> None:
    """Reject new traffic, then answer all waiting callers, and only then close the listener.

    uvicorn waits for open requests before it notifies the application, so unanswered parked calls would delay the stop
    for their whole wait.
    """
    _log.info("draining", extra={"parked": services.coordinator.parked()})
    services.api.begin_drain()
    if services.grpc is not None:
        await services.grpc.begin_drain()
    await asyncio.sleep(settings.drain_delay_ms / 1000)
    if services.grpc is not None:
        await services.grpc.drain()
    await services.coordinator.drain()


async def _report_ready(services: Services) -> None:
    await services.coordinator.wait_until_ready()
    _log.info("ready", extra={"shards": services.coordinator.shard_count})


def _spare_the_collector() -> None:
    """Exclude imported modules from garbage collections, and collect rarely.

    The libraries have some hundred thousand permanent objects; scanning them repeatedly took a sixth of the server's
    time under heartbeats, and blocked the event loop for milliseconds.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


async def _maintain(services: Services, settings: Settings) -> None:
    """Maintain the store periodically. A failed step is retried the next time."""
    note_retention(settings.journal_keep_days, UPKEEP_INTERVAL_SECONDS)
    while True:
        await asyncio.sleep(UPKEEP_INTERVAL_SECONDS)
        try:
            await services.store.maintain()
        except StoreUnavailable as error:
            _log.warning("store maintenance failed; it is retried", extra={"error": str(error)})
        await delete_old_lines(settings.store, settings.journal_keep_days)


async def _watch_health(services: Services) -> None:
    """Let `/healthz` fail when only a restart helps: the store would accept writes of another process."""
    while True:
        await asyncio.sleep(_HEALTH_INTERVAL_SECONDS)
        is_failing = services.coordinator.store_failing_ms() >= _FAILING_MS
        services.api.backend.needs_restart = is_failing and await services.store.needs_restart()
        if services.api.backend.needs_restart:
            _log.error("only a restart can help: the store takes no write of this process; /healthz says so")


class Signals:
    """SIGTERM and SIGINT set `stop`; any later signal ends the process at once.

    That is safe, because all answered calls are durable.
    """

    def __init__(self, stop: asyncio.Event) -> None:
        self._stop = stop

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

    def _on_signal(self, number: int) -> None:
        if self._stop.is_set():
            os._exit(128 + number)
        self._stop.set()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's factory if installed: about twice the requests per second."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
