"""The runtime's time: the two clocks, and the queue of its timers.

The timers of all shards are in one heap: each member has one for its session.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Generic, Protocol, TypeVar

from rota.core.group.state import Timer
from rota.core.replica.owned_shard import Now

STALL_MS = 100
"""Later than this and the process, not the member, was asleep."""
MAX_HOLD_MS = 10_000
BATCH = 500
"""How many timers fire before the event loop gets its turn again."""
LONGEST_SLEEP_MS = 3_600_000


Owner = TypeVar("Owner")
"""Says whose timer it is."""


class Clock(Protocol):
    """Two readings of one passing of time, so that a test can put its own in place."""

    def now_ms(self) -> int:
        """Milliseconds since 1970 as of the process's start, counted on by the monotonic clock.

        A jump of the machine's clock moves no deadline: the jump is not seen until the next start.
        """

    def monotonic_ms(self) -> int:
        """Milliseconds of the monotonic clock, for leases and waits."""

    def now(self) -> Now:
        """Both at one moment."""
        return Now(self.now_ms(), self.monotonic_ms())


class SystemClock(Clock):
    """The machine's clocks."""

    def __init__(self) -> None:
        monotonic_ms = self.monotonic_ms()
        self._offset_ms = time.time_ns() // 1_000_000 - monotonic_ms
        self._last = Now(monotonic_ms + self._offset_ms, monotonic_ms)
        """The last moment: dozens of heartbeats come in one millisecond."""

    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000 + self._offset_ms

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def now(self) -> Now:
        now, monotonic_ms = self._last, time.monotonic_ns() // 1_000_000
        if now[1] != monotonic_ms:
            now = self._last = Now(monotonic_ms + self._offset_ms, monotonic_ms)
        return now


class TimerQueue(Generic[Owner]):
    """Due timers, earliest first. The caller waits for them.

    When timers fire late (a paused process, a blocked loop), the heartbeats that came in meanwhile still
    wait in the sockets. So all timers that were set before are then held back for as long as they were late: no member
    is expired for the server's own sleep. Timers that are set after it fire in time.
    """

    def __init__(self, clock: Clock, on_late: Callable[[int], None]) -> None:
        self._clock = clock
        self._on_late = on_late
        self._heap: list[tuple[int, int, Owner, Timer]] = []
        self._held: list[tuple[int, int, Owner, Timer]] = []
        """Set before a stall was noticed. They join the others at `_held_until_ms`."""
        self._held_until_ms = 0
        self._order = count()
        self._left_ms = 0
        """When the timers that were due had been handled last."""

    def set(self, timer: Timer, owner: Owner) -> bool:
        """Keep a timer; True if it is now the first to fire."""
        first_ms = self.next_at_ms()
        heapq.heappush(self._heap, (timer.at_ms, next(self._order), owner, timer))
        return first_ms is None or timer.at_ms < first_ms

    def delay_ms(self) -> int:
        """The time until `due` has something to give next, at most `LONGEST_SLEEP_MS`; 0 or less: it has."""
        at_ms = self.next_at_ms()
        return LONGEST_SLEEP_MS if at_ms is None else at_ms - self._clock.now_ms()

    def next_at_ms(self) -> int | None:
        """When `due` has something to give next, by the clock's `now_ms`."""
        next_ms = self._heap[0][0] if self._heap else None
        if not self._held:
            return next_ms
        return self._held_until_ms if next_ms is None else min(next_ms, self._held_until_ms)

    def due(self) -> Iterator[tuple[Owner, Timer]]:
        """Take due timers out, at most `BATCH` of them. Each is to be handled before the next is asked for."""
        now_ms = self._clock.now_ms()
        self._hold_if_late(now_ms)
        if self._held and self._held_until_ms <= now_ms:
            self._heap += self._held
            self._held = []
            heapq.heapify(self._heap)
        for _ in range(BATCH):
            if not self._heap or self._heap[0][0] > now_ms:
                break
            _, _, owner, timer = heapq.heappop(self._heap)
            yield owner, timer
        self._left_ms = self._clock.now_ms()

    def _hold_if_late(self, now_ms: int) -> None:
        due_ms = self.next_at_ms()
        if due_ms is None:
            return
        # A backlog that is being worked off is no stall: lateness counts from where the work was left.
        lateness_ms = now_ms - max(due_ms, self._left_ms)
        if lateness_ms > STALL_MS:
            self._held_until_ms = max(self._held_until_ms, now_ms + min(lateness_ms, MAX_HOLD_MS))
            while self._heap and self._heap[0][0] < self._held_until_ms:
                self._held.append(heapq.heappop(self._heap))
            self._on_late(lateness_ms)
