"""Heartbeats from a separate thread, for programs that block their event loop.

The members stay on the program's loop. When a member has sent no heartbeat for half a session, this thread sends one
for it over a separate connection, and stores the answer; the member reads it before it declares a share lost.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rota.client.errors import CoordinatorUnreachable
from rota.client.threads import LoopThread
from rota.client.transports.port import Answer, Transport
from rota.protocol.defaults import HEARTBEAT_THREAD_TIMEOUT_MS
from rota.protocol.messages import Heartbeat, HeartbeatReply

if TYPE_CHECKING:
    from rota.client.driver import Driver

_TICK_S = 0.1


@dataclass(frozen=True, slots=True)
class Beat:
    """The answer to a heartbeat, and when the heartbeat was sent (milliseconds of the member's own clock)."""

    request: Heartbeat
    reply: HeartbeatReply
    sent_at_ms: int


class Pulse:
    """Sends heartbeats for any number of members, from the first member until `stop`."""

    def __init__(self, connect: Callable[[], Transport]) -> None:
        """`connect` creates a transport for this thread alone."""
        self._connect = connect
        self._thread: LoopThread | None = None
        self._members: set[Driver] = set()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._beating: asyncio.Task[None] | None = None

    def keep(self, member: Driver) -> None:
        with self._lock:
            if self._thread is None:
                thread = LoopThread("rota heartbeats")
                thread.start()
                thread.submit(self._beat())
                self._thread = thread
            self._members.add(member)

    def release(self, member: Driver) -> None:
        with self._lock:
            self._members.discard(member)

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.stop()

    async def _beat(self) -> None:
        transport = self._connect()
        under_way: dict[Driver, asyncio.Task[None]] = {}
        try:
            while not self._stopped.is_set():
                with self._lock:
                    members = tuple(self._members)
                for member in members:
                    request = member.overdue_heartbeat()
                    if request is not None and (member not in under_way or under_way[member].done()):
                        under_way[member] = asyncio.create_task(_exchange(transport, member, request))
                await asyncio.sleep(_TICK_S)
        finally:
            for task in under_way.values():
                task.cancel()
            await asyncio.gather(*under_way.values(), return_exceptions=True)
            await transport.close()


async def _exchange(transport: Transport, member: Driver, request: Heartbeat) -> None:
    """Send one heartbeat. Only the arrival of an answer matters: its content concerns the member's own heartbeats."""
    sent_at_ms = member.clock_ms()
    outcome: Answer | CoordinatorUnreachable
    try:
        outcome = await transport.send(request, timeout_ms=HEARTBEAT_THREAD_TIMEOUT_MS)
    except CoordinatorUnreachable as error:
        outcome = error
    member.beaten(request, outcome, sent_at_ms)
