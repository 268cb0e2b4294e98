"""A server with all of its ports on an event loop in a thread of its own, whose CPU time can be asked for."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

import uvloop
from msgspec.structs import replace

from rota.core.replica.ports import Answer
from rota.protocol.limits import Limits
from rota.protocol.messages import GetLeader, GetTopic, Heartbeat, JoinGroup, Request, SyncGroup
from rota.server.grpc.server import GrpcServer
from rota.server.http.app import create_app
from rota.server.http_server import HttpServer, listen
from rota.server.observability.logs import quiet_libraries
from rota.server.peer.server import PeerServer
from rota.server.runtime.clock import SystemClock
from rota.server.runtime.coordinator import LocalCoordinator
from rota.server.settings import Address
from rota.testing.memory import MemoryStore

HOST = "127.0.0.1"
SECRET = "the secret of the peers, 32 bytes"
LIMITS = Limits(initial_rebalance_delay_ms=0, group_max_size=20)
START_S = 60.0


class ImpatientCoordinator(LocalCoordinator):
    """The real one, but calls are never parked: a fuzzer would wait for what no other member does."""

    async def call(self, request: Request) -> Answer:
        if isinstance(request, (JoinGroup, SyncGroup, Heartbeat, GetLeader, GetTopic)):
            request = replace(request, wait_ms=0)
        return await super().call(request)


class Served:
    """HTTP, gRPC and the port for peers, on one coordinator in memory; opened and closed by a `with` block."""

    def __enter__(self) -> Self:
        quiet_libraries()
        self._ready, self._failed = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="served")
        self._thread.start()
        assert self._ready.wait(START_S)
        assert not self._failed, "the server did not start"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(START_S)

    def cpu_s(self) -> float:
        """CPU time of the thread of the event loop."""
        assert self._thread.ident is not None
        return time.clock_gettime(time.pthread_getcpuclockid(self._thread.ident))

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException:
            self._failed = True
            self._ready.set()
            raise

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        async with _coordinator() as coordinator:
            bound = listen(Address(HOST, 0))
            api = create_app(coordinator, LIMITS)
            http = HttpServer(api, [bound], drain_timeout_ms=1_000, member_calls=api.member_calls)
            grpc = GrpcServer(coordinator, LIMITS)
            peer = PeerServer(coordinator, HOST, secrets=lambda: [SECRET])
            await grpc.start(HOST)
            await peer.start()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(http.run_until_stopped())
                self.http_port, self.peer_port = bound.getsockname()[1], peer.port
                self.grpc_port = int(grpc.address.rpartition(":")[2])
                self._ready.set()
                await self._stopping.wait()
                http.stop()
            await grpc.stop(0.2)
            await peer.stop()


@asynccontextmanager
async def _coordinator() -> AsyncIterator[LocalCoordinator]:
    clock = SystemClock()
    store = MemoryStore(clock.monotonic_ms)
    await store.open(4)
    # A lease that a busy machine does not lose.
    async with ImpatientCoordinator(store, shard_count=4, limits=LIMITS, clock=clock, lease_ms=60_000) as coordinator:
        await coordinator.wait_until_ready()
        yield coordinator
