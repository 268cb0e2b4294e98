"""A process that was asleep expires no member for it; one that is merely busy with expiries does not stop for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random

import pytest

from rota.core.group.state import Timer, TimerKind
from rota.server.runtime.clock import BATCH, STALL_MS, Clock, SystemClock, TimerQueue


class HandClock(Clock):
    """Time moves when a test moves it."""

    def __init__(self) -> None:
        self.ms = 1_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms


Fire = Callable[[Timer], None]


def fire_due(queue: TimerQueue[Fire]) -> None:
    for fire, timer in queue.due():
        fire(timer)


def a_timer(at_ms: int) -> Timer:
    return Timer(TimerKind.SESSION, "default", "g", "m", at_ms)


def test_a_process_that_slept_delays_its_timers_as_long() -> None:
    clock, fired, late = HandClock(), list[Timer](), list[int]()
    queue: TimerQueue[Fire] = TimerQueue(clock, late.append)
    queue.set(a_timer(1_010), fired.append)

    clock.ms = 1_010 + 700
    fire_due(queue)

    assert (fired, late, queue.next_at_ms()) == ([], [700], 1_010 + 1_400)
    clock.ms = 1_010 + 1_400
    fire_due(queue)
    assert len(fired) == 1


def test_timers_that_are_set_after_a_stall_fire_in_time() -> None:
    clock, fired = HandClock(), list[Timer]()
    queue: TimerQueue[Fire] = TimerQueue(clock, lambda _: None)
    queue.set(a_timer(1_010), fired.append)

    clock.ms = 1_010 + 700
    fire_due(queue)
    is_first = queue.set(a_timer(1_760), fired.append)
    clock.ms = 1_760
    fire_due(queue)

    assert is_first
    assert ([timer.at_ms for timer in fired], queue.next_at_ms()) == ([1_760], 1_010 + 1_400)


def test_a_short_stall_does_not_end_a_longer_hold() -> None:
    clock, fired, late = HandClock(), list[Timer](), list[int]()
    queue: TimerQueue[Fire] = TimerQueue(clock, late.append)
    queue.set(a_timer(1_010), fired.append)

    clock.ms = 1_010 + 700
    fire_due(queue)
    queue.set(a_timer(1_720), fired.append)
    clock.ms = 1_720 + 150
    fire_due(queue)

    assert (fired, late, queue.next_at_ms()) == ([], [700, 150], 1_010 + 1_400)


def test_a_backlog_of_expiries_is_worked_off_without_a_pause() -> None:
    clock, late = HandClock(), list[int]()
    fired: list[Timer] = []
    queue: TimerQueue[Fire] = TimerQueue(clock, late.append)
    batches = 10
    for _ in range(batches * BATCH):
        queue.set(a_timer(1_010), fired.append)

    clock.ms = 1_010
    for _ in range(batches):
        fire_due(queue)
        clock.ms += STALL_MS // 2  # the expiry also has to be written

    assert len(fired) == batches * BATCH
    assert late == []


def test_a_process_asleep_in_a_backlog_holds_the_rest_back() -> None:
    clock, fired, late = HandClock(), list[Timer](), list[int]()
    queue: TimerQueue[Fire] = TimerQueue(clock, late.append)
    for _ in range(2 * BATCH):
        queue.set(a_timer(1_010), fired.append)

    clock.ms = 1_010
    fire_due(queue)
    clock.ms += 500
    fire_due(queue)

    assert (len(fired), late) == (BATCH, [500])


def test_timers_of_one_moment_fire_in_the_order_of_setting() -> None:
    clock, fired = HandClock(), list[str]()
    queue: TimerQueue[Fire] = TimerQueue(clock, lambda _: None)
    at_ms = clock.ms + 200
    for name in ("m2", "m0", "m1"):
        queue.set(Timer(TimerKind.SESSION, "default", "g", name, at_ms), lambda timer: fired.append(timer.member_id))

    clock.ms = at_ms - 1
    fire_due(queue)
    queue.set(Timer(TimerKind.SESSION, "default", "g", "late", at_ms), lambda timer: fired.append(timer.member_id))
    clock.ms = at_ms
    fire_due(queue)

    assert fired == ["m2", "m0", "m1", "late"]


def test_any_timers_fire_when_they_are_due() -> None:
    """Each fires in its millisecond; timers of one millisecond fire in the order in which they were set."""
    drawn = Random(0)
    clock, fired = HandClock(), list[tuple[int, Timer]]()
    queue: TimerQueue[Fire] = TimerQueue(clock, lambda _: None)
    timers: list[Timer] = []

    while clock.ms < 6_000:
        if clock.ms < 4_000 and drawn.random() < 0.2:
            timer = a_timer(clock.ms + drawn.choice((1, 20, 90, 700, 1_900)))
            timers.append(timer)
            next_ms = queue.next_at_ms()
            assert queue.set(timer, lambda timer: fired.append((clock.ms, timer))) or (
                next_ms is not None and next_ms <= timer.at_ms
            )
        clock.ms += 1
        if (next_ms := queue.next_at_ms()) is not None and next_ms <= clock.ms:
            fire_due(queue)

    assert fired == [(timer.at_ms, timer) for timer in sorted(timers, key=lambda timer: timer.at_ms)]
    assert queue.next_at_ms() is None


def test_a_stall_holds_back_timers_that_are_due_while_it_is_made_up_for() -> None:
    clock, fired, late = HandClock(), list[Timer](), list[int]()
    queue: TimerQueue[Fire] = TimerQueue(clock, late.append)
    for at_ms in (1_010, 1_010 + 900, 1_010 + 3_000):
        queue.set(a_timer(at_ms), fired.append)

    clock.ms = 1_010 + 700
    fire_due(queue)
    clock.ms = 1_010 + 900
    fire_due(queue)

    assert (fired, late, queue.next_at_ms()) == ([], [700], 1_010 + 1_400)
    clock.ms = 1_010 + 1_400
    fire_due(queue)
    assert [timer.at_ms for timer in fired] == [1_010, 1_010 + 900]


def test_both_clocks_of_the_machine_are_read_at_one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    shown_ns = [5_000_000]
    monkeypatch.setattr(time, "monotonic_ns", lambda: shown_ns[0])
    monkeypatch.setattr(time, "time_ns", lambda: 1_005_000_000)
    clock = SystemClock()

    seen = []
    for shown_ns[0] in (5_000_000, 5_999_999, 6_000_000, 9_000_000):
        seen.append(clock.now())
        assert seen[-1] == (clock.now_ms(), clock.monotonic_ms())

    assert seen == [(1_005, 5), (1_005, 5), (1_006, 6), (1_009, 9)]
