"""Generating a whole journal: shards are simulated side by side, one process a core, and written as they go."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import active_children

from rota.core.group.rows import ShardImage
from rota.demo.workload.fleet import DAY_MS, draw_group
from rota.demo.workload.shard import ShardWorld
from rota.demo.workload.writing import finish_shard, prepare, write_lines
from rota.protocol.ids import shard_of

Report = Callable[[int, int, int], None]
"""Hears how many shards of how many are done, and how many lines they have."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which journal. It ends at `until_ms`, a wall clock's milliseconds; the same values give the same lines."""

    store_url: str
    groups: int
    days: float
    seed: int
    until_ms: int
    shard_count: int = 64

    @property
    def from_ms(self) -> int:
        return self.until_ms - int(self.days * DAY_MS)


@dataclass(frozen=True, slots=True)
class Generated:
    lines: int
    seconds: float


def generate(wanted: Wanted, *, processes: int = 0, report: Report = lambda _done, _all, _lines: None) -> Generated:
    """Make the store and fill it; `StoreRefused` where there is a journal already."""
    began = time.perf_counter()
    asyncio.run(prepare(wanted.store_url, wanted.shard_count, wanted.from_ms, wanted.until_ms))
    lines = 0
    with _writing(wanted, processes or os.cpu_count() or 1) as shards:
        for done, shard in enumerate(as_completed(shards), 1):
            written = shard.result()
            # Here, one after the other: an embedded store lets one process in at a time.
            asyncio.run(finish_shard(wanted.store_url, written.image, written.epoch))
            lines += written.lines
            report(done, wanted.shard_count, lines)
    return Generated(lines, time.perf_counter() - began)


@contextmanager
def _writing(wanted: Wanted, processes: int) -> Iterator[list[Future[_Written]]]:
    """Write all shards in processes of their own, which are ended where the block is left by an exception."""
    with ProcessPoolExecutor(processes) as pool:
        try:
            # A terminal sends Ctrl-C to all processes. This one ends the others, which inherit that SIGINT is blocked.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                shards = [pool.submit(_write_shard, wanted, shard_id) for shard_id in range(wanted.shard_count)]
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            yield shards
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in active_children():
                child.terminate()
            raise


@dataclass(frozen=True, slots=True)
class _Written:
    """A shard with all `lines` of its journal, and its state after them."""

    lines: int
    image: ShardImage
    epoch: int


def _write_shard(wanted: Wanted, shard_id: int) -> _Written:
    """One shard from its first line to its last."""
    plans = [draw_group(number, wanted.seed) for number in range(wanted.groups)]
    mine = [plan for plan in plans if shard_of("default", plan.group_id, wanted.shard_count) == shard_id]
    world = ShardWorld(shard_id, mine, seed=wanted.seed, starts_at_ms=wanted.from_ms)
    lines = asyncio.run(write_lines(wanted.store_url, world.run(wanted.until_ms)))
    return _Written(lines, world.image(), world.epoch)
