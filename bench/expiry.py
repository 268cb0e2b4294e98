"""A whole fleet falls silent: 50,000 sessions in 5,000 groups run out at once, or over one heartbeat interval."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import quantiles

from bench.figures import Effort, Figure, transposed
from bench.groups import LIMITS, NAMESPACE, StableGroup
from rota.group.rows import ShardImage
from rota.group.shard import Shard
from rota.protocol.ids import shard_of
from rota.runtime.clock import SystemClock
from rota.runtime.coordinator import LocalCoordinator
from rota.runtime.ports import JournalEvent
from rota.runtime.telemetry import Telemetry
from rota.storage.memory import MemoryStore

SHARDS = 64
GROUPS = 5_000
MEMBERS_OF_A_GROUP = 10
SESSION_TIMEOUT_MS = 6_000
HEARTBEAT_INTERVAL_MS = 3_000
DEADLINE_S = 120.0
LATEST_AIM_MS = 1_000.0
DONE_AIM_S = 5.0


def run(effort: Effort) -> list[Figure]:
    """How late the last expiry is, and how soon all of them are in the journal."""
    fleet = _Fleet(effort.times(GROUPS))
    size = len(fleet.heartbeats)
    at_once = [asyncio.run(fleet.fall_silent(spread_ms=0)) for _ in range(effort.repeats)]
    in_turn = [asyncio.run(fleet.fall_silent(spread_ms=HEARTBEAT_INTERVAL_MS)) for _ in range(effort.repeats)]
    return [*_figures(f"{size} at once", at_once), *_figures(f"{size} over one heartbeat interval", in_turn)]


def _figures(name: str, samples: Sequence[Sequence[float]]) -> list[Figure]:
    load_s, typical_ms, latest_ms, done_s = transposed(samples)
    return [
        Figure("expiry", f"{name}: the owner loads them all", "s", load_s),
        Figure("expiry", f"{name}: median lateness of an expiry", "ms", typical_ms),
        Figure("expiry", f"{name}: the latest expiry", "ms", latest_ms, aim=LATEST_AIM_MS),
        Figure("expiry", f"{name}: from the first deadline to all in the journal", "s", done_s, aim=DONE_AIM_S),
    ]


class _Fleet:
    """Stable groups as their store's rows, and the heartbeats of their members."""

    def __init__(self, groups: int) -> None:
        shards = [Shard(shard_id, LIMITS) for shard_id in range(SHARDS)]
        group_ids = [f"g{number}" for number in range(groups)]
        stable = [StableGroup(shards[_shard_of(group_id)], group_id, MEMBERS_OF_A_GROUP) for group_id in group_ids]
        self.heartbeats = [heartbeat for group in stable for heartbeat in group.heartbeats()]
        self._images = [_with_short_sessions(shard.image()) for shard in shards]

    async def fall_silent(self, *, spread_ms: int) -> tuple[float, float, float, float]:
        """Seconds to load, median and greatest lateness in ms, seconds from the first deadline to the end.

        Each member heartbeats a last time, at one moment or one after the other over the `spread_ms` just past.
        """
        clock = _HeldClock()
        expired = _Expired(clock, len(self.heartbeats))
        store = _LoadedStore(clock, self._images)
        await store.open(SHARDS)
        started = time.perf_counter()
        coordinator = LocalCoordinator(store, shard_count=SHARDS, limits=LIMITS, clock=clock, telemetry=expired)
        async with coordinator:
            await coordinator.wait_until_ready()
            load_s = time.perf_counter() - started
            deadlines_ms = self._heartbeat_once(coordinator, clock, spread_ms)
            async with asyncio.timeout(DEADLINE_S):
                await expired.all_of_them.wait()
            late_ms = [at_ms - deadlines_ms[member_id] for member_id, at_ms in expired.at_ms.items()]
            done_s = (expired.last_durable_ms - min(deadlines_ms.values())) / 1_000
        return load_s, quantiles(late_ms)[1], max(late_ms), done_s

    def _heartbeat_once(self, coordinator: LocalCoordinator, clock: _HeldClock, spread_ms: int) -> dict[str, int]:
        deadlines_ms = {}
        began_ms = clock.now_ms() - spread_ms
        for number, heartbeat in enumerate(self.heartbeats):
            at_ms = began_ms + number * spread_ms // len(self.heartbeats)
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

    def on_events(self, shard_id: int, events: Sequence[JournalEvent]) -> None:  # noqa: ARG002
        expired = {e.payload["member_id"]: e.at_ms for e in events if e.kind == "member_expired"}
        self.at_ms.update(expired)
        self.last_durable_ms = self._clock.now_ms()
        if len(self.at_ms) == self._size:
            self.all_of_them.set()


class _LoadedStore(MemoryStore):
    """A store in memory that already holds the fleet."""

    def __init__(self, clock: SystemClock, images: Sequence[ShardImage]) -> None:
        super().__init__(clock.monotonic_ms)
        self._images = images

    async def load(self, shard_id: int) -> ShardImage:
        return self._images[shard_id]


def _shard_of(group_id: str) -> int:
    return shard_of(NAMESPACE, group_id, SHARDS)


def _with_short_sessions(image: ShardImage) -> ShardImage:
    members = [replace(row, image=replace(row.image, session_timeout_ms=SESSION_TIMEOUT_MS)) for row in image.members]
    return replace(image, members=tuple(members))
