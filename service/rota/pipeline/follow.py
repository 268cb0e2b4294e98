"""Following a journal: copy new lines every few seconds, fold them every minute, and look after the files every hour.

It runs for as long as its machine does. Each step takes the lock of the tables for itself, so other commands come in
between. While the store or the tables cannot be reached, or another process holds the lock, it tries again, less and
less often.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

from rota.pipeline.bronze import Ingest
from rota.pipeline.failures import JournalUnreachable, LakeBusy, LakeUnreachable, PipelineFailed
from rota.pipeline.gold import refresh
from rota.pipeline.journal import Journal
from rota.pipeline.lake import Lake
from rota.pipeline.meters import COMPACT, INGEST, REFRESH, Meters
from rota.pipeline.positions import Position
from rota.pipeline.spark_errors import failure_of
from rota.pipeline.tasks import Workers
from rota.pipeline.upkeep import compact_lake

MOST_WAIT_S = 60.0
"""Between two tries while the store cannot be reached."""


class Look(NamedTuple):
    """What a look found: lines, and how old the youngest was once they were in bronze; or a message for people."""

    lines: int
    lag_s: float
    message: str = ""


class Clock(Protocol):
    """Where the time comes from: `SystemClock`, or one that tests set."""

    def monotonic(self) -> float:
        """Seconds since some moment."""

    def time(self) -> float:
        """Seconds since 1970."""

    def sleep(self, seconds: float) -> None:
        """Return after so long."""


class SystemClock:
    """The machine's own."""

    def monotonic(self) -> float:
        return time.monotonic()

    def time(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@dataclass(frozen=True, slots=True)
class Follower:
    """How often to do what. Seconds between the beginnings; a step that takes longer delays the next ones."""

    ingest: Ingest
    reader: str = ""
    every_s: float = 5.0
    refresh_every_s: float = 60.0
    compact_every_s: float = 3_600.0
    """0 never compacts."""
    keep_days: float = 0
    vacuum_hours: float = 168
    decoder: str = ""
    clock: Clock = field(default_factory=SystemClock)
    meters: Meters = field(default_factory=Meters)

    def looks(self, workers: Workers, lake: Lake) -> Iterator[Look]:
        """For ever: each look that found lines, and each message. Raises `PipelineFailed` where waiting is no use."""
        refreshed, compacted = float("-inf"), self.clock.monotonic()
        failed_at, tries = 0.0, 0
        while True:
            began = self.clock.monotonic()
            try:
                with lake.locked():
                    done = self.ingest.run(workers, lake)
                leave_bookmark(self.ingest.journal, self.reader, done.position)
                lag_s = max(0.0, self.clock.time() - done.youngest_s) if done.lines else 0.0
                self._note(INGEST, began, lines=done.lines, lag_s=lag_s)
                if done.lines:
                    yield Look(done.lines, lag_s)
                if began - refreshed >= self.refresh_every_s:
                    started = self.clock.monotonic()
                    with lake.locked():
                        refresh(workers, lake, decoder=self.decoder)
                        self._note(REFRESH, started)
                        self.meters.write_rows(lake, self.clock.time())
                        self.meters.count_files(lake)
                    refreshed = began
                if self.compact_every_s and began - compacted >= self.compact_every_s:
                    started = self.clock.monotonic()
                    with lake.locked():
                        now = datetime.fromtimestamp(self.clock.time(), UTC)
                        kept = {"keep_days": self.keep_days, "vacuum_hours": self.vacuum_hours}
                        messages = list(compact_lake(lake, **kept, now=now))
                        self.meters.count_files(lake)
                    compacted = began
                    self._note(COMPACT, started)
                    yield from (Look(0, 0.0, message) for message in messages)
            except Exception as error:
                failure = error if isinstance(error, PipelineFailed) else failure_of(error)
                if not isinstance(failure, JournalUnreachable | LakeBusy | LakeUnreachable):
                    raise
                self.meters.failed()
                if not tries:
                    failed_at = began
                    yield Look(0, 0.0, f"{failure}; trying again, at least every {MOST_WAIT_S:.0f} s, until it works")
                wait_s = min(MOST_WAIT_S, self.every_s * 2**tries)
                tries = min(tries + 1, 10)
            else:
                if tries:
                    yield Look(0, 0.0, f"works again after {self.clock.monotonic() - failed_at:.0f} s")
                tries, wait_s = 0, self.every_s
            self.clock.sleep(max(0.0, wait_s - (self.clock.monotonic() - began)))

    def _note(self, step: str, started: float, *, lines: int = 0, lag_s: float = 0.0) -> None:
        seconds = self.clock.monotonic() - started
        self.meters.step(step, self.clock.time(), seconds, lines=lines, lag_s=lag_s)


def leave_bookmark(
    journal: Journal, reader: str, position: Position, warn: Callable[[str], None] = lambda _message: None
) -> None:
    """Say how far we have read. Without the right to, or on a standby, that is not our failure: only pruning minds."""
    if not reader:
        return
    try:
        journal.bookmark(reader, position)
    except PipelineFailed as failed:
        warn(f"no bookmark was left for `rota journal prune`: {failed}")
