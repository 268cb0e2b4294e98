"""Advice about session timeouts that a person can check by hand: each expected number is worked out beside it."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rota.core.group.records import CLASSES, class_end_ms, gap_class
from rota.pipeline.audit import broken_rules
from rota.pipeline.facts.timeouts import DAY_MS, Silences, recommend, round_up
from rota.pipeline.tables import GOLD
from tests.pipeline.hand_made import HandMade, Values, as_dict
from tests.pipeline.journals import SIMULATED, ordered, simulated
from tests.pipeline.replaying import fold_lines


def silences(
    kept: dict[int, int], *, late: dict[int, int] | None = None, longest_ms: int = 0, member_ms: int = DAY_MS
) -> Silences:
    """So many gaps of these lengths (ms), and so many silences that ended a session."""
    gaps = [0] * CLASSES
    for gap_ms, count in kept.items():
        gaps[gap_class(gap_ms)] += count
    rounded = {round_up(ms): count for ms, count in (late or {}).items()}
    longest_kept_ms = longest_ms or max(kept, default=0)
    return Silences(gaps, longest_kept_ms, rounded, max([longest_kept_ms, *(late or {})]), member_ms)


def the_advice(group: HandMade) -> Values:
    """The last row of the table."""
    return group.rows("timeout_advice")[-1]


# --- whole groups, with members that a test pauses ------------------------------------------------------------------


def paused(session_timeout_ms: int, seconds: float) -> HandMade:
    """Two members that are paused ten times each, and then go on for twenty minutes."""
    group = HandMade("range", 6, session_timeout_ms=session_timeout_ms).start(0, 1)
    for number in range(20):
        group.pause(number % 2, seconds).wait(30)
    return group.wait(1_200).stop(0).stop(1)


def test_pauses_that_end_sessions_count_as_long_gaps() -> None:
    found = the_advice(paused(1_000, 3))

    # Heartbeats are 0.4 s apart, so a pause of 3 s is a silence of 3.0 to 3.4 s: each of the 20 ends a session. Its
    # client comes back, so it was only late. No silence is above 3.5 s; half as much again is 5.25 s: 5.5 s.
    days = found["member_ms"] / DAY_MS
    assert (found["late_ms"], found["late"], found["longest_kept_ms"]) == ([3_500], [20], 400)
    assert 3_000 < found["longest_gap_ms"] <= 3_500
    assert found["false_expiries_per_day"] == pytest.approx(20 / days)
    assert (found["recommended_ms"], found["recommended_false_per_day"]) == (5_500, 0)
    assert found["detection_saved_ms"] == -4_500


def test_the_same_pauses_end_no_session_under_a_longer_timeout() -> None:
    found = the_advice(paused(10_000, 3))

    # Heartbeats are 4 s apart. A pause lets one of them out where it falls into it: no gap is above 8 s.
    assert (found["late"], found["false_expiries_per_day"]) == ([], 0)
    assert found["longest_gap_ms"] in (4_000, 8_000)
    assert found["recommended_ms"] == round_up(int(1.5 * (found["longest_gap_ms"] + 1)))


def test_a_member_that_is_dead_was_not_late() -> None:
    found = the_advice(HandMade("range", 6, session_timeout_ms=1_000).start(0, 1).wait(300).crash(1).wait(60))

    assert (found["late"], found["false_expiries_per_day"]) == ([], 0)


def test_a_client_back_long_after_its_expiry_was_not_late() -> None:
    group = HandMade("range", 6, session_timeout_ms=1_000).start(0, 1).wait(300).crash(1)

    # It expires after 1 s; 10 s after that a return is no longer soon.
    late = the_advice(group.wait(12).start(1).wait(60))
    again = the_advice(group.crash(1).wait(9).start(1).wait(60))

    assert (late["late"], again["late"]) == ([], [1])


def test_a_static_member_that_is_back_after_its_expiry_was_late() -> None:
    group = HandMade("range", 6, static=True).start(0, 1).wait(60).crash(1)

    # Its session of 10 s began up to 4 s before the crash and is over by then; it starts 15 s after the crash.
    found = the_advice(group.wait(15).start(1).wait(700).crash(1).wait(20))

    assert found["late"] == [1]
    assert 15_000 <= found["longest_gap_ms"] <= 19_100


def test_an_expiry_of_a_member_that_no_line_names_is_passed_over() -> None:
    lines = HandMade("range", 6).start(0, 1).crash(1).wait(12).start(1).wait(700).stop(0).lines
    begins = next(n for n, line in enumerate(lines) if line.kind == "generation_completed")

    [(_, fold, rows)] = [(key, fold, list(closed)) for key, fold, closed in fold_lines(lines[begins:])]

    advice = [row for row in (*rows, *fold.open_rows()) if row.table == "timeout_advice"]
    assert [as_dict(*row)["late"] for row in advice] == [[]]


# --- numbers --------------------------------------------------------------------------------------------------------


def test_a_gap_within_the_timeout_is_not_longer_than_it() -> None:
    found = silences({2_000: 5_000, 9_800: 50})

    # 9.8 s and 10 s fall into the class from 8,192 to 10,239 ms, whose gaps ended by 9.8 s.
    assert gap_class(9_800) == gap_class(10_000)
    assert found.longer_than(10_000) == 0
    assert recommend(found, 10_000).false_expiries_per_day == 0


def test_the_class_of_the_timeout_is_split() -> None:
    found = silences({2_000: 5_000, 9_800: 2_048}, longest_ms=10_239)

    # Spread evenly over the 2,048 lengths from 8,192 to 10,239 ms, one each: 239 of them are above 10 s.
    assert class_end_ms(gap_class(9_800)) == 10_239
    assert class_end_ms(gap_class(9_800) - 1) == 8_191
    assert found.longer_than(10_000) == pytest.approx(239)


def test_expiries_of_clients_that_came_back_are_the_false_ones() -> None:
    # 110 of them, two members for 16 hours: 32 hours are 4/3 days, 110 * 3 / 4 = 82.5 a member and day.
    found = silences({4_000: 20_000}, late={14_300: 110}, member_ms=32 * 3_600_000)

    advice = recommend(found, 10_000)

    # 14.3 s is noted as 15 s; half as much again is 22.5 s, so 23 s.
    assert advice.false_expiries_per_day == pytest.approx(82.5)
    assert (advice.recommended_ms, advice.recommended_false_per_day) == (23_000, 0)


def test_some_false_expiries_may_be_allowed() -> None:
    # Ten days of one member: 1 a day allows 10 longer silences. 4 of 20 s and 9 of 15 s are 13, so 15 s has to do.
    found = silences({4_000: 20_000}, late={20_000: 4, 15_000: 9}, member_ms=10 * DAY_MS)

    advice = recommend(found, 10_000, allowed_per_day=1.0)

    assert advice.recommended_ms == 23_000
    assert advice.false_expiries_per_day == pytest.approx(1.3)


def test_a_few_gaps_prove_nothing_without_a_needless_expiry() -> None:
    assert recommend(silences({4_000: 499}), 10_000).recommended_ms is None
    assert recommend(silences({4_000: 500}), 10_000).recommended_ms == 6_500  # 1.5 * 4,001 ms
    assert recommend(silences({4_000: 10}, late={12_000: 1}), 10_000).recommended_ms == 19_000  # 1.5 * 12,001 ms


LENGTHS = st.dictionaries(st.integers(1, 200_000), st.integers(1, 1_000), max_size=8)


@example(kept={}, late={130_000: 1, 200_000: 1}, timeout_ms=1_000, allowed=1.0)  # 200 s, as long as the longest gap.
@given(kept=LENGTHS, late=LENGTHS, timeout_ms=st.integers(1_000, 120_000), allowed=st.sampled_from([0.01, 1.0, 50.0]))
def test_no_advice_contradicts_the_longest_gap(
    kept: dict[int, int], late: dict[int, int], timeout_ms: int, allowed: float
) -> None:
    found = silences(kept, late=late)

    advice = recommend(found, timeout_ms, allowed)

    columns = {
        **dict.fromkeys(column.name for column in GOLD["timeout_advice"].columns),
        **advice._asdict(),
        "session_timeout_ms": timeout_ms,
        "longest_kept_ms": found.longest_kept_ms,
        "longest_gap_ms": found.longest_gap_ms,
    }
    assert list(broken_rules("timeout_advice", tuple(columns.values()))) == []
    assert found.longer_than(timeout_ms) >= found.longer_than(timeout_ms + 500)
    if advice.recommended_ms is not None:
        assert advice.recommended_ms >= found.longest_gap_ms or found.longer_than(advice.recommended_ms) > 0


@pytest.mark.parametrize("seed", [1, 2, 3, 5])
def test_no_row_about_a_timeout_is_impossible(seed: int) -> None:
    rows = []
    for _, fold, closed in fold_lines(ordered(simulated(seed)), SIMULATED):
        rows += [*closed, *fold.open_rows()]

    assert [text for row in rows for text in broken_rules(row.table, row.values)] == []
