"""A whole fleet falls silent: 50,000 sessions in 5,000 groups run out at once, or over one heartbeat interval."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import quantiles

from bench.figures import Effort, Figure, transposed
from bench.fleet import Fleet, LoadedMemoryStore, coordinator_of
from rota.core.replica.ports import JournalEvent
from rota.protocol.messages import Heartbeat
from rota.server.runtime.clock import SystemClock
from rota.server.runtime.coordinator import LocalCoordinator
from rota.server.runtime.telemetry import Telemetry

GROUPS = 5_000
MEMBERS_OF_A_GROUP = 10
SESSION_TIMEOUT_MS = 6_000
HEARTBEAT_INTERVAL_MS = 3_000
DEADLINE_S = 120.0
LATEST_AIM_MS = 1_000.0
DONE_AIM_S = 5.0


def run(effort: Effort) -> list[Figure]:
    """How late the last expiry is, and how soon all of them are in the journal."""
    fleet = Fleet(effort.times(GROUPS), MEMBERS_OF_A_GROUP, session_timeout_ms=SESSION_TIMEOUT_MS)
    size = len(fleet.heartbeats())
    at_once = [asyncio.run(_fall_silent(fleet, spread_ms=0)) for _ in range(effort.repeats)]
    in_turn = [asyncio.run(_fall_silent(fleet, spread_ms=HEARTBEAT_INTERVAL_MS)) for _ in range(effort.repeats)]
    return [*_figures(f"{size} at once", at_once), *_figures(f"{size} over one heartbeat interval", in_turn)]


def _figures(name: str, samples: Sequence[Sequence[float]]) -> list[Figure]:
    load_s, typical_ms, latest_ms, done_s, cpu_us = transposed(samples)
    return [
        Figure("expiry", f"{name}: the owner loads them all", "s", load_s),
        Figure("expiry", f"{name}: median lateness of an expiry", "ms", typical_ms),
        Figure("expiry", f"{name}: the latest expiry", "ms", latest_ms, aim=LATEST_AIM_MS),
        Figure("expiry", f"{name}: from the first deadline to all in the journal", "s", done_s, aim=DONE_AIM_S),
        Figure("expiry", f"{name}: CPU of an expiry, its journal lines included", "µs", cpu_us),
    ]


async def _fall_silent(fleet: Fleet, *, spread_ms: int) -> tuple[float, float, float, float, float]:
    """Seconds to load, median and greatest lateness in ms, seconds from the first deadline to the end, µs of CPU each.

    Each member heartbeats a last time, all at one moment, or one after the other over the `spread_ms` just past.
    """
    clock = _HeldClock()
    heartbeats = fleet.heartbeats()
    expired = _Expired(clock, len(heartbeats))
    started = time.perf_counter()
    async with coordinator_of(LoadedMemoryStore(fleet.images), clock=clock, telemetry=expired) as coordinator:
        load_s = time.perf_counter() - started
        deadlines_ms = _heartbeat_once(heartbeats, coordinator, clock, spread_ms)
        before_s = time.process_time()
        async with asyncio.timeout(DEADLINE_S):
            await expired.all_of_them.wait()
        cpu_us = (time.process_time() - before_s) / len(heartbeats) * 1e6
        late_ms = [at_ms - deadlines_ms[member_id] for member_id, at_ms in expired.at_ms.items()]
        done_s = (expired.last_durable_ms - min(deadlines_ms.values())) / 1_000
    return load_s, quantiles(late_ms)[1], max(late_ms), done_s, cpu_us


def _heartbeat_once(
    heartbeats: Sequence[Heartbeat], coordinator: LocalCoordinator, clock: _HeldClock, spread_ms: int
) -> dict[str, int]:
    """Returns each member's deadline."""
    deadlines_ms = {}
    began_ms = clock.now_ms() - spread_ms
    for number, heartbeat in enumerate(heartbeats):
        at_ms = began_ms + number * spread_ms // len(heartbeats)
        with clock.held(at_ms):
            coordinator.try_heartbeat(heartbeat)
        deadlines_ms[heartbeat.member_id] = at_ms + SESSION_TIMEOUT_MS
    return deadlines_ms


class _HeldClock(SystemClock):
    """The machine's clock, which can be held at one moment while members are told to have been heard then."""

    def __init__(self) -> None:
        super().__init__()
        self._held_at_ms: int | None = None

    def now_ms(self) -> int:
        return super().now_ms() if self._held_at_ms is None else self._held_at_ms

    @contextmanager
    def held(self, at_ms: int) -> Iterator[None]:
        self._held_at_ms = at_ms
        yield
        self._held_at_ms = None


class _Expired(Telemetry):
    """Hears which members have expired, once that is durable."""

    def __init__(self, clock: SystemClock, size: int) -> None:
        self.at_ms: dict[str, int] = {}
        self.last_durable_ms = 0
        self.all_of_them = asyncio.Event()
        self._clock = clock
        self._size = size

    def on_commit(self, lines: Mapping[int, Sequence[JournalEvent]], seconds: float) -> None:  # noqa: ARG002
        events = (event for of_shard in lines.values() for event in of_shard)
        expired = {e.payload["member_id"]: e.at_ms for e in events if e.kind == "member_expired"}
        self.at_ms.update(expired)
        self.last_durable_ms = self._clock.now_ms()
        if len(self.at_ms) == self._size:
            self.all_of_them.set()
