"""The time before members are removed: what they have sent is read first, then the other replicas are asked."""

from __future__ import annotations

import asyncio

from rota.group.state import Timer, TimerKind
from rota.runtime.clock import BATCH
from rota.runtime.host import ShardHost
from rota.runtime.sessions import SharedSessions

READS = 6
READ_S = 0.005
"""In each pause the event loop reads its sockets at least once, and gRPC's threads run. A new connection takes two: one
to be accepted, and one to be read. A message over gRPC, or one that another replica forwards, takes a few. In a process
that gets little CPU the pauses are as much longer as its threads wait."""


class Expiries:
    """Fires timers that would remove silent members once all that was received before is read.

    A busy or paused event loop finds its timers due before it reads its sockets. A heartbeat that arrived in time may
    wait there for as long as a turn of the loop takes, which can be seconds. Run `run()` as a task that its creator
    awaits.
    """

    def __init__(self, sessions: SharedSessions | None) -> None:
        self._sessions = sessions
        self._asking: list[tuple[ShardHost, Timer]] = []
        self._is_due = asyncio.Event()

    def ask(self, host: ShardHost, timer: Timer) -> None:
        """Fire this timer of the host with `fire_asked`, later."""
        self._asking.append((host, timer))
        self._is_due.set()

    async def run(self) -> None:
        while True:
            await self._is_due.wait()
            self._is_due.clear()
            asking, self._asking = self._asking, []
            for _ in range(READS):
                await asyncio.sleep(READ_S)
            timers = [(host.shard_id, timer) for host, timer in asking if timer.kind is TimerKind.SESSION]
            seen = await self._sessions.ask_others(timers) if self._sessions and timers else [None] * len(timers)
            seen_ms_ago = dict(zip(timers, seen, strict=True))
            for number, (host, timer) in enumerate(asking, 1):
                host.fire_asked(timer, seen_ms_ago.get((host.shard_id, timer)))
                if number % BATCH == 0:
                    await asyncio.sleep(0)
