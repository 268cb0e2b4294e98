"""What a change would have come to, for histories that a person can go through: the sums are in the comments."""

from __future__ import annotations

import pytest

from rota.pipeline.advisor import STRATEGIES
from rota.pipeline.audit import broken_rules
from rota.pipeline.tables import GOLD
from rota.pipeline.what_ifs import NO_CHANGE, STATIC
from tests.pipeline.hand_made import HandMade, Values
from tests.pipeline.journals import SIMULATED, ordered, simulated
from tests.pipeline.replaying import replays

COOPERATIVE = "cooperative-sticky"
ON_THE_WAY_MS = 500
"""Requests take some milliseconds each, and a member that wakes up goes on within a heartbeat."""


def counts(row: Values) -> tuple[int, int, int]:
    return row["rebalances"], row["join_phases"], row["moves"]


def about(unit_ms: int) -> object:
    """This, or a little more, for each of up to three members with two units."""
    return pytest.approx(unit_ms + ON_THE_WAY_MS, abs=ON_THE_WAY_MS)


def test_a_static_rolling_restart_pauses_units_without_rebalance() -> None:
    found = HandMade(COOPERATIVE, 6).start(0).start(1).start(2).restart(0, 1, 2).what_ifs()

    # As in test_advice: nine steps. Static members restart without one, so the three starts are left: 1 + 2 + 2 join
    # phases, 3 + 2 moves. But then 2 units wait for each of the three members for 5 s: 3 * 2 * 5 s = 30 s.
    assert counts(found[NO_CHANGE]) == (9, 14, 17)
    assert counts(found[STATIC]) == (3, 5, 5)
    assert found[NO_CHANGE]["waiting_unit_ms"] == 0
    assert found[STATIC]["waiting_unit_ms"] == about(30_000)


def test_an_eager_strategy_stops_all_units_in_rebalances() -> None:
    group = HandMade("range", 6).start(0).start(1).start(2).restart(0, 1, 2)

    # Each rebalance stops all six units from when it begins until there is an assignment.
    agreed_ms = sum(row["duration_ms"] for row in group.rows("rebalances"))
    found = group.what_ifs()
    assert found[NO_CHANGE]["paused_unit_ms"] == 6 * agreed_ms
    assert found["strategy sticky"]["paused_unit_ms"] == 6 * agreed_ms
    assert found[f"strategy {COOPERATIVE}"]["paused_unit_ms"] < 2 * agreed_ms


def test_units_of_a_dead_member_wait_for_the_session_timeout() -> None:
    found = HandMade(COOPERATIVE, 6).start(0, 1, 2).crash(1).wait(20).what_ifs()

    # It had 2 units: 2 * 10 s. With another timeout they wait for that; the rebalances are the same.
    waits = {
        change: row["waiting_unit_ms"] for change, row in found.items() if "timeout" in change or change == NO_CHANGE
    }
    assert waits == {NO_CHANGE: 20_000, "session timeout 5000": 10_000, "session timeout 20000": 40_000}
    assert {counts(row) for change, row in found.items() if change in waits} == {(2, 2, 2)}


def test_a_timeout_above_a_pause_saves_both_rebalances() -> None:
    found = HandMade(COOPERATIVE, 6).start(0, 1, 2).pause(1, 15).wait(30).what_ifs()

    # The join; the expiry, which moves 2 units; the return in two join phases, which moves 2 units. With a timeout of
    # 25 s (half as much again as the silence) there is only the join, and the 2 units wait for the 15 s of the pause
    # instead of the 10 s of the session.
    assert (counts(found[NO_CHANGE]), found[NO_CHANGE]["false_expiries"]) == ((3, 4, 4), 1)
    assert (counts(found["session timeout 25000"]), found["session timeout 25000"]["false_expiries"]) == ((1, 1, 0), 0)
    assert found[NO_CHANGE]["waiting_unit_ms"] == 20_000
    assert found["session timeout 25000"]["waiting_unit_ms"] == pytest.approx(31_000, abs=1_000)


def test_a_timeout_below_harmless_gaps_ends_sessions_in_vain() -> None:
    # Heartbeats are 4 s apart, and one falls into the pause: a gap of 8 s, which the timeout of 10 s allows.
    found = HandMade("range", 6).start(0, 1).pause(1, 5).wait(1_300).what_ifs()

    # 5 s do not: the member goes and comes back. Two steps of one join phase, and its 3 units move there and back.
    assert (counts(found[NO_CHANGE]), found[NO_CHANGE]["false_expiries"]) == ((1, 1, 0), 0)
    assert (counts(found["session timeout 5000"]), found["session timeout 5000"]["false_expiries"]) == ((3, 3, 6), 1)
    assert found["session timeout 5000"]["waiting_unit_ms"] == 3 * 5_000


def test_a_crashed_static_member_is_replaced_before_it_expires() -> None:
    found = HandMade(COOPERATIVE, 6).start(0, 1, 2).crash(1).wait(3).start(1).wait(20).what_ifs()

    # Its new process joins while the old member is still one, so both are waited for: one more step, and its 2 units
    # move. A static one takes its place at once, and they wait only for as long as no process ran: 3 s, and up to 4 s
    # before the crash, when it was last seen.
    assert counts(found[NO_CHANGE]) == (2, 2, 2)
    assert counts(found[STATIC]) == (1, 1, 0)
    assert 2 * 3_000 <= found[STATIC]["waiting_unit_ms"] <= 2 * 7_100


def test_a_static_member_that_stays_away_expires_later() -> None:
    found = HandMade("range", 6).start(0, 1, 2).stop(2).wait(20).what_ifs()

    # The same step (2, 4 and 5 move), but only after 10 s in which the 2 units of the member have waited.
    assert counts(found[NO_CHANGE]) == counts(found[STATIC]) == (2, 2, 3)
    assert (found[NO_CHANGE]["waiting_unit_ms"], found[STATIC]["waiting_unit_ms"]) == (0, 20_000)


def test_another_member_may_join_while_a_static_one_is_awaited() -> None:
    found = HandMade("sticky", 12).start(0, 1, 2).stop(2).start(3).wait(20).what_ifs()

    # Dynamic: 4 + 4 + 4; the third leaves, its 4 move; another comes, 4 move. Static: the other comes while the third
    # is still a member, 3 units move (3 + 3 + 3 + 3); it expires, its 3 move. Its 4 units wait from when it went: 10 s.
    assert counts(found[NO_CHANGE]) == (3, 3, 8)
    assert counts(found[STATIC]) == (3, 3, 6)
    assert found[STATIC]["waiting_unit_ms"] == 40_000


def test_the_only_member_may_restart_without_a_rebalance() -> None:
    found = HandMade("range", 6).start(0).restart(0).wait(20).what_ifs()

    # Dynamic: the group is empty in between. Static: 6 units wait for 5 s.
    assert counts(found[NO_CHANGE]) == (2, 2, 0)
    assert counts(found[STATIC]) == (1, 1, 0)
    assert found[STATIC]["waiting_unit_ms"] == about(30_000)


def test_static_members_are_not_advised_to_be_static() -> None:
    assert STATIC not in HandMade(COOPERATIVE, 6, static=True).start(0, 1, 2).restart(0, 1).what_ifs()


def test_a_strategy_has_the_sums_of_the_advisor() -> None:
    group = HandMade("range", 7).start(0).start(1).start(2).restart(1).crash(0).wait(20)

    advised, found = group.advice(), group.what_ifs()

    assert {name: (sums["rounds"], sums["moves"]) for name, sums in advised.items() if name in STRATEGIES} == {
        name: counts(found[f"strategy {name}"])[1:] for name in STRATEGIES
    }


@pytest.mark.parametrize("seed", [1, 2, 3, 5])
def test_no_price_is_impossible(seed: int) -> None:
    rows = [row for row in replays(ordered(simulated(seed)), STRATEGIES, SIMULATED) if row.table == "what_ifs"]

    assert rows != []
    assert [text for row in rows for text in broken_rules(row.table, row.values)] == []


def test_a_price_below_nothing_is_named() -> None:
    row = dict.fromkeys([column.name for column in GOLD["what_ifs"].columns], 0)

    assert list(broken_rules("what_ifs", tuple(row.values()))) == []
    assert len(list(broken_rules("what_ifs", tuple({**row, "moves": -1}.values())))) == 1
