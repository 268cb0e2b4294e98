"""Of two APSchedulers and of two Celery beats, one runs at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from apscheduler.schedulers.background import BackgroundScheduler
from celery import Celery
from celery.signals import before_task_publish

from rota.adapters.celery_beat import LeaderScheduler
from rota.adapters.singleton import SingletonGuard
from tests.processes.server import Server

pytestmark = pytest.mark.processes

DEADLINE_S = 60.0
SESSION_S = 60.0
"""A stopped process hands over at once; a leader must not lose the lead because the machine is busy."""


class Jobs:
    """The processes that ran, one letter a run."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def until_ran(self, who: str, times: int = 3) -> None:
        """Wait for so many runs of one scheduler, from now on."""
        begin, until = len(self.ran), time.monotonic() + DEADLINE_S
        while self.ran[begin:].count(who) < times:
            assert time.monotonic() < until, f"{who} does not run"
            time.sleep(0.01)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def a_guard(server: Server, name: str) -> SingletonGuard:
    return SingletonGuard(server.url, name, session_timeout=SESSION_S)


def start_scheduler(stack: ExitStack, guard: SingletonGuard, jobs: Jobs, who: str) -> BackgroundScheduler:
    scheduler = BackgroundScheduler()
    job = guard.only_leader(lambda: jobs.ran.append(who))
    scheduler.add_job(job, "interval", seconds=0.02, max_instances=5, misfire_grace_time=10, coalesce=True)
    scheduler.start(paused=True)
    stack.callback(scheduler.shutdown)
    guard.control(scheduler)
    return scheduler


def test_one_apscheduler_runs_jobs_then_the_other(server: Server, stack: ExitStack) -> None:
    jobs = Jobs()
    first, second = a_guard(server, "apscheduler"), a_guard(server, "apscheduler")
    stack.enter_context(first)
    assert first.wait_elected(DEADLINE_S)
    start_scheduler(stack, first, jobs, "a")
    stack.enter_context(second)
    start_scheduler(stack, second, jobs, "b")

    jobs.until_ran("a")
    token = first.fencing_token
    beside = set(jobs.ran)
    first.stop()
    assert second.wait_elected(DEADLINE_S)
    jobs.until_ran("b")

    assert beside == {"a"}
    assert "a" not in jobs.ran[jobs.ran.index("b") :]
    assert token is not None
    assert (second.fencing_token or 0) > token


def test_a_job_of_one_occasion_runs_once_over_a_hand_over(server: Server, stack: ExitStack) -> None:
    ran: list[str] = []
    first, second = a_guard(server, "once"), a_guard(server, "once")
    of_first = first.only_leader(lambda: ran.append("a"), once_per=3_600, name="report")
    of_second = second.only_leader(lambda: ran.append("b"), once_per=3_600, name="report")
    other = second.only_leader(lambda: ran.append("other"), once_per=3_600, name="other")
    stack.enter_context(first)
    assert first.wait_elected(DEADLINE_S)
    of_first()
    stack.enter_context(second)
    first.stop()
    assert second.wait_elected(DEADLINE_S)
    of_second()
    other()

    assert ran == ["a", "other"]


def test_a_job_that_raised_is_run_again_for_its_occasion(server: Server, stack: ExitStack) -> None:
    guard, ran = a_guard(server, "raises"), [0]

    def fail_once() -> None:
        ran[0] += 1
        if ran[0] == 1:
            raise OSError("the disk is full")

    job = guard.only_leader(fail_once, once_per=3_600)
    stack.enter_context(guard)
    assert guard.wait_elected(DEADLINE_S)
    with pytest.raises(OSError, match="the disk is full"):
        job()
    job()
    job()

    assert ran == [2]


@pytest.fixture
def sent() -> Iterator[Jobs]:
    """What Celery publishes, by the name of the task."""
    jobs = Jobs()

    def note(sender: str, **_: object) -> None:
        jobs.ran.append(sender)

    before_task_publish.connect(note)
    yield jobs
    before_task_publish.disconnect(note)


def a_beat(server: Server, folder: Path, who: str, **settings: Any) -> LeaderScheduler:
    app = Celery(f"beat-{who}", broker="memory://")
    schedule = {"often": {"task": who, "schedule": 0.02}}
    app.conf.update(rota_url=server.url, rota_session_timeout=SESSION_S, beat_schedule=schedule, **settings)
    return LeaderScheduler(app, schedule_filename=str(folder / who), max_interval=0.02)


def tick_until(beat: LeaderScheduler, sent: Jobs, who: str) -> None:
    until = time.monotonic() + DEADLINE_S
    while who not in sent.ran:
        assert time.monotonic() < until, f"{who} sends nothing"
        beat.tick()
        time.sleep(0.01)


def test_one_celery_beat_sends_then_the_other(server: Server, tmp_path: Path, sent: Jobs, stack: ExitStack) -> None:
    first, second = a_beat(server, tmp_path, "a"), a_beat(server, tmp_path, "b")
    tick_until(first, sent, "a")
    stack.callback(second.close)
    for _ in range(20):
        first.tick()
        second.tick()
    beside = set(sent.ran)

    first.close()
    tick_until(second, sent, "b")

    assert beside == {"a"}
    assert "a" not in sent.ran[sent.ran.index("b") :]


def test_a_beat_that_takes_over_sends_an_occasion_no_more(
    server: Server, tmp_path: Path, sent: Jobs, stack: ExitStack
) -> None:
    settings = {"rota_beat_name": "once", "rota_once_per": {"often": 3_600}}
    first, second = (a_beat(server, tmp_path, who, **settings) for who in ("first", "second"))
    stack.callback(second.close)
    tick_until(first, sent, "first")
    for _ in range(20):
        first.tick()
    first.close()
    until = time.monotonic() + DEADLINE_S
    while not second.guard.is_leader:
        assert time.monotonic() < until, "the second beat does not lead"
        second.tick()
    for _ in range(20):
        second.tick()

    assert sent.ran == ["first"]
