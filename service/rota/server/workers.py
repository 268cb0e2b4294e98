"""`rota serve --workers N`: replicas on one machine behind one address, supervised and stopped together.

Each worker has its own sockets on the shared ports (SO_REUSEPORT), so that the kernel distributes connections evenly,
and the others get those of a dead worker. The supervisor first checks that no other service has the port, and then
keeps it: a second service cannot start on it, and a restarted worker finds it free.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from time import monotonic

from rota.core.replica.ports import StoreRefused, StoreUnavailable
from rota.server.http_server import CannotListen
from rota.server.lifecycle import ServerFailed, Signals, run
from rota.server.own_ports import OwnPorts, own_ports
from rota.server.peer_secrets import new_peer_secret
from rota.server.settings import Address, Settings
from rota.server.worker import pack
from rota.storage.store import SqlStore
from rota.storage.urls import SqliteLocation, parse_store_url

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
STEADY_S = 10.0
"""Workers that ran at least this long restart without backoff."""
STOP_SLACK_S = 10.0
"""Extra time after its drain before a stopping worker is killed."""

_log = logging.getLogger(__name__)


def run_workers(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code. After a second signal the workers end by themselves."""
    return run(settings, supervise)


async def supervise(settings: Settings) -> None:
    """Keep the workers running until a signal arrives; raise `ServerFailed`."""
    stop = asyncio.Event()
    try:
        with (
            Signals(stop),
            _kept_port("http", settings.http) as http,
            _kept_if_wanted("grpc", settings.grpc) as grpc,
            _kept_if_wanted("http", settings.probes) as probes,
            _kept_own_ports(settings) as owns,
        ):
            # Report errors of all workers only once.
            await _check_store(settings)
            await _keep_all(settings.model_copy(update={"http": http, "grpc": grpc, "probes": probes}), owns, stop)
    except (CannotListen, StoreRefused, StoreUnavailable) as error:
        raise ServerFailed(str(error)) from error


async def _keep_all(settings: Settings, owns: Sequence[OwnPorts], stop: asyncio.Event) -> None:
    _log.info("supervising", extra={"url": f"http://{settings.http}", "workers": settings.workers})
    secret = new_peer_secret()
    async with asyncio.TaskGroup() as tasks:
        workers = [_Worker(number, settings, own, secret, stop) for number, own in enumerate(owns)]
        ends = [tasks.create_task(worker.keep()) for worker in workers]
    failed = [str(number) for number, end in enumerate(ends) if end.result() != 0]
    if failed:
        raise ServerFailed(f"these workers failed: {', '.join(failed)}; see the log")


async def _check_store(settings: Settings) -> None:
    if isinstance(parse_store_url(settings.store), SqliteLocation):
        raise ServerFailed("more than one worker needs a store in Postgres: an embedded one belongs to one process")
    store = SqlStore(settings.store)
    await store.open(settings.shard_count)
    await store.close()


@contextlib.contextmanager
def _kept_port(scheme: str, address: Address) -> Iterator[Address]:
    """Yield a port that only the workers share; raise `CannotListen`."""
    try:
        # Bind without sharing: this fails if another process has the port, even if it allows sharing.
        with _bound(address, socket.SO_REUSEADDR) as alone:
            alone.listen()
        kept = _keep(address)
    except OSError as error:
        raise CannotListen(f"cannot listen on {scheme}://{address}: {error.strerror or error}") from error
    with kept:
        yield Address(address.host, kept.getsockname()[1])


def _keep(address: Address) -> socket.socket:
    """Return a socket that never listens, so that it gets no connections."""
    try:
        # Without SO_REUSEADDR it blocks other services, which set it, even before a worker listens.
        return _bound(address, socket.SO_REUSEPORT)
    except OSError:
        # No process listens, so these are old connections of a server that did not share the port.
        return _bound(address, socket.SO_REUSEPORT, socket.SO_REUSEADDR)


def _bound(address: Address, *options: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET)
    try:
        for option in options:
            bound.setsockopt(socket.SOL_SOCKET, option, 1)
        bound.bind((address.host, address.port))
    except OSError:
        bound.close()
        raise
    return bound


def _kept_if_wanted(scheme: str, address: Address | None) -> contextlib.AbstractContextManager[Address | None]:
    return contextlib.nullcontext() if address is None else _kept_port(scheme, address)


@contextlib.contextmanager
def _kept_own_ports(settings: Settings) -> Iterator[list[OwnPorts]]:
    """Yield each worker's ports, kept like the shared ones, so that no other process takes them during a restart."""
    with contextlib.ExitStack() as kept:
        yield [
            OwnPorts(
                http=kept.enter_context(_kept_if_wanted("http", own.http)),
                grpc=kept.enter_context(_kept_if_wanted("grpc", own.grpc)),
            )
            for own in (own_ports(settings, worker) for worker in range(settings.workers))
        ]


class _Worker:
    """One of the processes. It reads its settings from its standard input, which ends with the supervisor."""

    def __init__(self, number: int, settings: Settings, own: OwnPorts, peer_secret: str, stop: asyncio.Event) -> None:
        peer = settings.peer
        own_peer = Address(peer.host, peer.port and peer.port + number)
        self._settings = settings.model_copy(update={"peer": own_peer})
        self._own = own
        self._peer_secret = peer_secret
        self._number = number
        self._stop = stop

    async def keep(self) -> int:
        """Keep it running until `stop`; return the exit code of the last process."""
        pause_s = FIRST_PAUSE_S
        exit_code = 0
        while not self._stop.is_set():
            began = monotonic()
            try:
                process = await self._start()
            except OSError as error:
                # Usually temporary: the system has no free process, memory or file. The other workers continue to
                # serve.
                exit_code = 1
                _log.error("a worker cannot be started", extra={"worker": self._number, "error": str(error)})
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                await self._stops_within(pause_s)
                continue
            if await self._ends_before_stop(process):
                exit_code = process.returncode or 0
                extra = {"worker": self._number, "pid": process.pid, "exit_code": exit_code}
                _log.error("a worker ended by itself", extra=extra)
                pause_s = FIRST_PAUSE_S if monotonic() - began > STEADY_S else min(2 * pause_s, LONGEST_PAUSE_S)
                await self._stops_within(pause_s)
            else:
                exit_code = await self._end(process)
        return exit_code

    async def _start(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "rota.server.worker"),
            stdin=asyncio.subprocess.PIPE,
            # Only the supervisor handles Ctrl-C: a second signal would end a worker during its drain.
            start_new_session=True,
        )
        assert process.stdin is not None
        process.stdin.write(pack(self._settings, self._own, self._peer_secret))
        _log.info("a worker starts", extra={"worker": self._number, "pid": process.pid})
        return process

    async def _ends_before_stop(self, process: asyncio.subprocess.Process) -> bool:
        ended, stopped = asyncio.create_task(process.wait()), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((ended, stopped), return_when=asyncio.FIRST_COMPLETED)
            return ended.done()
        finally:
            ended.cancel()
            stopped.cancel()

    async def _stops_within(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()

    async def _end(self, process: asyncio.subprocess.Process) -> int:
        """Return its exit code; also 0 if the signal ended it before it served."""
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        drain_s = (self._settings.drain_delay_ms + self._settings.drain_timeout_ms) / 1000
        try:
            async with asyncio.timeout(drain_s + STOP_SLACK_S):
                exit_code = await process.wait()
                return 0 if exit_code == -signal.SIGTERM else exit_code
        except TimeoutError:
            _log.error("a worker does not end and is killed", extra={"worker": self._number, "pid": process.pid})
            process.kill()
            return await process.wait()
