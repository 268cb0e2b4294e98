"""What a report says of the journal's end, and of the partitions that a rebalance stalled, from values alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from rota.pipeline.incidents import Stalls, in_order, stalls
from rota.pipeline.now import Progress, Standing, troubles
from rota.pipeline.period import AHEAD, Period, latest_line, moment, ms_of, parse_since, period

MINUTE, HOUR = 60_000, 3_600_000
END = 100 * HOUR
G = ("default", "g")


def lines_of(standing: Standing, end_ms: int = END) -> list[tuple[str, int]]:
    return [(one.what, one.for_ms) for one in troubles({G: standing}, end_ms)]


# --- right now ------------------------------------------------------------------------------------------


def test_a_group_that_rebalances_for_hours_is_stuck() -> None:
    stuck = Standing("PreparingRebalance", END - 14 * HOUR, leader_id="m", rebalance_timeout_ms=MINUTE)

    [(what, for_ms)] = lines_of(stuck)

    assert for_ms == 14 * HOUR
    assert what == "rebalancing (members join, longer than the rebalance timeout: check that its shard has an owner)"


@pytest.mark.parametrize(
    ("state", "for_ms", "what"),
    [
        ("PreparingRebalance", MINUTE - 1, None),
        ("PreparingRebalance", MINUTE, "rebalancing (members join)"),
        ("CompletingRebalance", MINUTE, "rebalancing (the assignment is awaited)"),
        ("Stable", HOUR, None),
        ("Empty", HOUR, None),
    ],
)
def test_a_rebalance_is_worth_a_line_after_a_minute(state: str, for_ms: int, what: str | None) -> None:
    found = lines_of(Standing(state, END - for_ms, leader_id="m", rebalance_timeout_ms=5 * MINUTE))

    assert [one for one, _ in found] == ([what] if what else [])


def test_a_group_without_its_last_leader_says_since_when() -> None:
    leaderless = Standing("Stable", END - HOUR, leader_gone_ms=END - 5 * MINUTE)
    never_had_one = Standing("Stable", END - HOUR)

    assert lines_of(leaderless) == [("no member leads", 5 * MINUTE)]
    assert lines_of(never_had_one) == []


def test_a_group_whose_last_member_was_lost_is_not_at_rest() -> None:
    assert lines_of(Standing("Empty", END - 3_000, lost=True)) == [("no members: the last one was lost", 3_000)]
    assert lines_of(Standing("Empty", END - 3_000, lost=False)) == []


def test_a_deleted_group_that_lost_its_last_member_is_shown_for_a_day() -> None:
    assert lines_of(Standing("Dead", END - 24 * HOUR, lost=True)) == [("no members: the last one was lost", 24 * HOUR)]
    assert lines_of(Standing("Dead", END - 24 * HOUR - 1, lost=True)) == []
    assert lines_of(Standing("Dead", END - HOUR, lost=False)) == []


def progress(number: int, last_ms: int, *, every_ms: int = 5_000, commits: int = 20) -> Progress:
    return Progress("orders", number, last_ms - every_ms * (commits - 1), last_ms, commits)


def test_partitions_without_a_commit_for_ten_hours_stand_still() -> None:
    slow = tuple(progress(number, END - 10 * HOUR - number) for number in range(4))

    [found] = troubles({G: Standing("Stable", 0, leader_id="m", partitions=slow, partition_count=22)}, END)

    assert (found.what, found.for_ms) == ("4 of 22 partitions without a commit", 10 * HOUR + 3)
    assert found.why == "last commits, the oldest first: orders/3, orders/2, orders/1 and 1 others"


@pytest.mark.parametrize(
    ("one", "stands_still"),
    [
        (progress(0, END - 10 * MINUTE), False),
        (progress(0, END - 10 * MINUTE - 1), True),
        # Its usual time is five minutes.
        (progress(0, END - 30 * MINUTE, every_ms=5 * MINUTE), False),
        (progress(0, END - 51 * MINUTE, every_ms=5 * MINUTE), True),
        # One commit says nothing about the next.
        (progress(0, END - 9 * HOUR, commits=1), False),
        (progress(0, END - 11 * HOUR, commits=1), True),
    ],
)
def test_a_partition_is_compared_with_its_own_pace(one: Progress, stands_still: bool) -> None:
    found = lines_of(Standing("Stable", 0, leader_id="m", partitions=(one,), partition_count=1))

    assert bool(found) is stands_still


def test_an_empty_group_makes_no_progress_and_need_not() -> None:
    assert lines_of(Standing("Empty", 0, partitions=(progress(0, END - HOUR),), partition_count=1)) == []


def test_groups_that_cannot_work_come_first_then_the_longest() -> None:
    groups = {
        ("n", "slow"): Standing("Stable", 0, leader_id="m", partitions=(progress(0, END - 9 * HOUR),)),
        ("n", "lost"): Standing("Empty", END - 8 * HOUR, lost=True),
        ("n", "stuck"): Standing("PreparingRebalance", END - HOUR, leader_id="m"),
        ("n", "longer"): Standing("PreparingRebalance", END - 2 * HOUR, leader_id="m"),
    }

    assert [one.group[1] for one in troubles(groups, END)] == ["longer", "stuck", "lost", "slow"]


# --- stalls of a rebalance --------------------------------------------------------------------------------


def commits(*moments_s: int, partition: int = 0) -> list[tuple[str, int, int]]:
    return [("orders", partition, at_s * 1_000) for at_s in moments_s]


def test_a_partition_stalls_from_its_last_commit_to_its_next() -> None:
    found = stalls(in_order(commits(0, 5, 10, 15, 78, 83, 88)), 20_000, 75_000, 200_000)

    assert found == Stalls(1, 1, 63_000, "orders/0")


def test_a_partition_with_commits_meanwhile_does_not_stall() -> None:
    kept = commits(*range(0, 120, 5), partition=1)
    found = stalls(in_order([*commits(0, 5, 10, 15, 78, 83), *kept]), 20_000, 75_000, 200_000)

    assert found == Stalls(1, 2, 63_000, "orders/0")


def test_a_partition_that_is_always_slow_does_not_stall() -> None:
    assert stalls(in_order(commits(0, 60, 120, 180)), 65_000, 75_000, 200_000) == Stalls(0, 1)


def test_a_stall_that_is_not_over_lasts_to_the_end_of_the_lines() -> None:
    assert stalls(in_order(commits(0, 5, 10)), 12_000, 40_000, 90_000) == Stalls(1, 1, 80_000, "orders/0", True)


def test_without_a_commit_before_it_nothing_is_known() -> None:
    assert stalls(in_order(commits(50, 55)), 12_000, 40_000, 90_000) is None
    assert stalls({}, 12_000, 40_000, 90_000) is None


# --- the period -------------------------------------------------------------------------------------------


def utc(year: int, month: int, day: int, hour: int = 0) -> datetime:
    """As the report's times are: in UTC, without a zone."""
    return datetime(year, month, day, hour, tzinfo=UTC).replace(tzinfo=None)


NOON = utc(2026, 11, 24, 12)


def test_a_clock_that_is_a_year_ahead_does_not_move_the_period() -> None:
    latest = latest_line(NOON.replace(tzinfo=UTC).timestamp(), NOON.replace(tzinfo=UTC).timestamp() + 9e9)

    of = period(NOON - timedelta(days=30), NOON + timedelta(days=365), latest, timedelta(days=7))

    assert latest == NOON + AHEAD
    assert (of.begin, of.end) == (latest - timedelta(days=7), latest)


def test_a_young_journal_begins_with_its_first_fact() -> None:
    of = period(NOON - timedelta(minutes=20), NOON, NOON + AHEAD, timedelta(days=7))

    assert (of.begin, of.end) == (NOON - timedelta(minutes=20), NOON)


def test_a_journal_without_facts_has_a_period() -> None:
    assert period(None, None, NOON, timedelta(days=1)).begin == NOON - timedelta(days=1)


@pytest.mark.parametrize(
    ("text", "since"),
    [
        ("2h", timedelta(hours=2)),
        ("30min", timedelta(minutes=30)),
        ("1.5 d", timedelta(hours=36)),
        ("2026-11-24T08:00", utc(2026, 11, 24, 8)),
        ("2026-11-24T08:00+02:00", utc(2026, 11, 24, 6)),
        ("2026-11-24", utc(2026, 11, 24)),
    ],
)
def test_since_is_a_moment_or_a_time_before_the_end(text: str, since: datetime | timedelta) -> None:
    assert parse_since(text) == since


@pytest.mark.parametrize("text", ["", "soon", "2 hours", "-1h", "25:00"])
def test_since_is_nothing_else(text: str) -> None:
    with pytest.raises(ValueError):
        parse_since(text)


@pytest.mark.parametrize(
    ("span", "seconds", "number"),
    [
        (timedelta(minutes=1), 1.25, 48),
        (timedelta(seconds=10), 1.0, 10),
        (timedelta(0), 1.0, 1),
        (timedelta(hours=48), 3_600.0, 48),
    ],
)
def test_the_parts_of_a_period_end_with_it(span: timedelta, seconds: float, number: int) -> None:
    of = Period(NOON - span, NOON, NOON)

    assert of.bins(48) == (seconds, number)
    assert of.begin + timedelta(seconds=seconds * number) <= max(of.end, of.begin + timedelta(seconds=1))


def test_moments_are_those_of_the_journal() -> None:
    assert moment(ms_of(NOON)) == NOON
    assert ms_of(utc(1970, 1, 2)) == 24 * HOUR
