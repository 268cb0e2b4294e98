"""Occasions: which starts of a schedule belong together, whatever the clocks of their hosts say."""

from __future__ import annotations

import pytest

from rota.client.occasions import Occasions
from rota.protocol.messages import FetchedOffset

MINUTE_S = 60.0
DUE = 1_790_000_000.0
REPORT = Occasions("report", 10 * MINUTE_S)


def after(done_at: float) -> list[FetchedOffset]:
    """The progress of a group whose last work was due then, beside that of another schedule."""
    done = REPORT.done(done_at)
    return [FetchedOffset(done.topic, 0, done.offset), FetchedOffset("occasions.other", 0, done.offset + 10**9)]


def test_the_first_occasion_is_due() -> None:
    assert REPORT.is_due([FetchedOffset(REPORT.asked().topic, 0)], DUE), "-1: nothing was committed"


@pytest.mark.parametrize(
    ("later_s", "is_due"),
    [
        (0, False),
        (2, False),
        (-2, False),
        (-9 * MINUTE_S, False),
        (5 * MINUTE_S - 0.001, False),
        (5 * MINUTE_S, True),
        (10 * MINUTE_S - 2, True),
        (10 * MINUTE_S, True),
    ],
)
def test_starts_within_half_a_period_are_one_occasion(later_s: float, is_due: bool) -> None:
    assert REPORT.is_due(after(DUE), DUE + later_s) is is_due


def test_an_occasion_is_kept_for_two_periods_or_a_day() -> None:
    weekly = Occasions("report", 7 * 24 * 60 * MINUTE_S)

    assert weekly.done(DUE).retention_time_ms == 14 * 86_400_000
    assert REPORT.done(DUE).retention_time_ms == 86_400_000


def test_any_name_of_a_function_names_a_schedule() -> None:
    assert Occasions("app.<locals>.job", 1).asked().topic == "occasions.app.-locals-.job"
    assert len(Occasions("x" * 500, 1).asked().topic) <= 249


def test_a_period_that_is_not_positive_is_refused() -> None:
    with pytest.raises(ValueError, match="must be above 0, not 0 s"):
        Occasions("report", 0)
