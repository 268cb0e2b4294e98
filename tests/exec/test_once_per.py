"""`rota lead --once-per`: several hosts start one command for one occasion, and one of them runs it."""

from __future__ import annotations

import signal

import pytest

from tests.exec.wrappers import Wrappers
from tests.support.processes import Process

pytestmark = pytest.mark.processes

ONCE = ("--once-per", "daily")


def exits(leads: list[Process]) -> list[int]:
    return sorted(lead.wait_for_exit() for lead in leads)


def runs(leads: list[Process]) -> int:
    return sum(lead.output().count("RUN") for lead in leads)


def test_a_short_job_runs_on_one_of_three_hosts(wrappers: Wrappers) -> None:
    leads = [wrappers.lead("echo", "RUN", options=ONCE) for _ in range(3)]

    assert exits(leads) == [0, 75, 75]
    assert runs(leads) == 1


def test_a_job_that_was_killed_is_run_by_the_next_host(wrappers: Wrappers) -> None:
    dies = wrappers.soon_lost().lead("sh", "-c", "echo RUN; exec sleep 600", options=ONCE)
    dies.wait_for_line("^RUN")
    others = [wrappers.lead("echo", "RUN", options=ONCE) for _ in range(2)]

    dies.send(signal.SIGKILL)
    dies.wait_for_exit()

    assert exits(others) == [0, 75]
    assert runs(others) == 1


def test_a_job_that_must_not_run_twice_is_not_repeated(wrappers: Wrappers) -> None:
    leads = [wrappers.lead("sh", "-c", "echo RUN; exit 3", options=(*ONCE, "--at-most-once")) for _ in range(2)]

    assert exits(leads) == [3, 75]
    assert runs(leads) == 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--once-per", "sometimes"), "'sometimes' is no time such as 90s, 20m or 2h"),
        (("--at-most-once",), "--at-most-once requires --once-per"),
    ],
)
def test_an_occasion_that_cannot_be_is_a_wrong_use(wrappers: Wrappers, options: tuple[str, ...], sentence: str) -> None:
    lead = wrappers.lead("true", options=options)

    assert lead.wait_for_exit() == 2
    assert sentence in lead.output()
