"""Advice that a person can check by hand: each expected number is worked out in the comment beside it."""

from __future__ import annotations

import json

import pytest

from rota.pipeline.advisor import ACTUAL, STRATEGIES
from rota.pipeline.audit import broken_rules
from rota.pipeline.facts.steps import Holders
from rota.pipeline.facts.units import Shares
from tests.pipeline.hand_made import HandMade, as_dict
from tests.pipeline.journals import SIMULATED, ordered, simulated
from tests.pipeline.replaying import fold_lines, replays

COOPERATIVE = "cooperative-sticky"


def sums(moves: int, least_moves: int, rounds: int, paused_units: int) -> dict[str, int]:
    return {"moves": moves, "least_moves": least_moves, "rounds": rounds, "paused_units": paused_units}


def a_rolling_restart(strategy: str, *, static: bool = False) -> HandMade:
    """Three members start one after the other and share six units; then each restarts."""
    return HandMade(strategy, 6, static=static).start(0).start(1).start(2).restart(0, 1, 2)


# The shares go 6, 3+3, 2+2+2; then, three times, 3+3 while a member is away and 2+2+2 when it is back: nine steps.
# Second member: 3 units move. Third: 2. Each departure: its 2 units. Each return: 2. 3 + 2 + 3 * (2 + 2) = 17, and no
# even assignment does with less.
OF_THE_RESTART = {
    # Shares are intervals. Second member: 3, 4, 5 move. Third: 2, 4, 5. First leaves: 0, 1, 3; it is back: 0, 1, 3.
    # Second leaves: 2, 3; it is back: 2, 3. Third leaves: 2, 4, 5; it is back: 2, 4, 5. 3 + 3 + 6 + 4 + 6 = 22.
    # One join phase a step, in which all six units stand still: 9 * 6 = 54.
    "range": sums(22, 17, 9, 54),
    # Units go to the members in turn. Second member (0 2 4, 1 3 5): 1, 3, 5 move. Third (0 3, 1 4, 2 5): 2, 3, 4, 5.
    # First leaves (-, 0 2 4, 1 3 5): 0, 1, 2, 3, and back: 4. Second leaves (0 2 4, -, 1 3 5): 1, 2, 3, 4, and back: 4.
    # Third leaves (0 2 4, 1 3 5, -): 2, 3, 4, 5, and back: 4. 3 + 4 + 3 * 8 = 31.
    "roundrobin": sums(31, 17, 9, 54),
    # It moves no more than the least.
    "sticky": sums(17, 17, 9, 54),
    # The same moves. Where a member comes, units are given up in one join phase and handed on in the next: the steps of
    # the second and the third member and of the three returns take two. 9 + 5 = 14. Only what moves stands still.
    COOPERATIVE: sums(17, 17, 14, 17),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_any_history_of_a_rolling_restart_gives_the_same_advice(strategy: str) -> None:
    assert a_rolling_restart(strategy).advice() == {**OF_THE_RESTART, ACTUAL: OF_THE_RESTART[strategy]}


def test_the_rounds_of_a_cooperative_step_are_rows_of_their_own() -> None:
    rows = HandMade(COOPERATIVE, 6).start(0).start(1).rows("assignments")

    columns = ("generation_id", "round", "units", "added", "revoked", "in_motion", "moves", "least_moves")
    assert [tuple(row[name] for name in columns) for row in rows] == [
        (1, 1, 6, 6, 0, 0, 0, 0),  # the first member gets all
        (2, 1, 3, 0, 3, 3, 0, 0),  # it gives up half, which no member has
        (3, 2, 6, 0, 0, 0, 3, 3),  # the second gets that half
    ]


def test_a_static_members_restart_moves_nothing() -> None:
    # Only the starts: 3 + 2 moves, in 1 + 2 + 2 join phases. A restart within the session timeout takes none.
    assert a_rolling_restart(COOPERATIVE, static=True).advice("sticky") == {
        "sticky": sums(5, 5, 3, 18),
        ACTUAL: sums(5, 5, 5, 5),
    }


def test_a_crash_moves_the_units_of_the_dead_member_once() -> None:
    # All three join in one step. The dead one's 2 units are free, so a second one suffices.
    group = HandMade(COOPERATIVE, 6).start(0, 1, 2).crash(1).wait(20)

    assert group.advice("sticky") == {"sticky": sums(2, 2, 2, 12), ACTUAL: sums(2, 2, 2, 2)}


def test_a_pause_past_the_session_moves_units_twice() -> None:
    # The first join; the expiry, 2 units go; the return, 2 come back, which takes two join phases: 1 + 1 + 2.
    group = HandMade(COOPERATIVE, 6).start(0, 1, 2).pause(1, 15).wait(30)

    assert group.advice("sticky") == {"sticky": sums(4, 4, 3, 18), ACTUAL: sums(4, 4, 4, 4)}


def test_units_of_a_group_that_was_empty_are_new() -> None:
    # Its only member restarts: nothing moves, for no member held anything when it came back. Two steps of 6 units.
    group = HandMade("range", 6).start(0).restart(0)

    assert group.advice(COOPERATIVE) == {COOPERATIVE: sums(0, 0, 2, 0), ACTUAL: sums(0, 0, 2, 12)}


def test_shares_that_cannot_be_equal_move_as_little() -> None:
    # 7, 4 + 3 (3 move), 3 + 2 + 2 (the first gives up 1 and the second 1): 5.
    group = HandMade(COOPERATIVE, 7).start(0).start(1).start(2)

    assert group.advice("sticky") == {"sticky": sums(5, 5, 3, 21), ACTUAL: sums(5, 5, 5, 5)}


def test_two_members_that_come_at_once_are_one_step() -> None:
    # 6, 2 + 2 + 2: 4 move. Cooperatively in two join phases after the first.
    group = HandMade(COOPERATIVE, 6).start(0).start(1, 2)

    assert group.advice("sticky") == {"sticky": sums(4, 4, 2, 12), ACTUAL: sums(4, 4, 3, 4)}


def test_a_replaced_member_moves_twice_its_share() -> None:
    # 8 units: 3 + 3 + 2, a fourth member gets 2, the first leaves and its 2 go on: 1 + 2 + 1 join phases.
    group = HandMade(COOPERATIVE, 8).start(0, 1, 2).start(3).stop(0)

    assert group.advice("sticky") == {"sticky": sums(4, 4, 3, 24), ACTUAL: sums(4, 4, 4, 4)}


def test_a_resync_takes_no_join_phase() -> None:
    lines = HandMade("range", 6).start(0, 1).lines
    last = next(line for line in reversed(lines) if line.kind == "assignment_synced")
    payload = {**json.loads(last.payload), "resync": True, "generation_id": 2}
    resync = last._replace(seq=lines[-1].seq + 1, generation_id=2, payload=json.dumps(payload))

    rows = [as_dict(*row) for row in replays([*lines, resync], ["range"]) if row.table == "advisor"]

    # The same shares again: nothing moves and nothing stands still. The step before, the join, stopped all 6.
    assert [(row["assignor"], row["generation_id"], row["rounds"], row["paused_units"]) for row in rows] == [
        ("range", 1, 1, 6),
        (ACTUAL, 1, 1, 6),
        ("range", 2, 0, 0),
        (ACTUAL, 2, 0, 0),
    ]


# --- the holders of units, where a whole group would be too much ----------------------------------------------------


def test_a_step_that_another_member_interrupts_is_over() -> None:
    holders = Holders()
    holders.assign({"a": ["t/0", "t/1", "t/2", "t/3"]}, COOPERATIVE)

    first = holders.assign({"a": ["t/0", "t/1"], "b": []}, COOPERATIVE)
    second = holders.assign({"a": ["t/0", "t/1"], "b": ["t/2"], "c": ["t/3"]}, COOPERATIVE)

    # `a` gives up two units for `b`; before `b` has them, `c` comes. Each moves once, and not in the first step.
    assert (first.number, first.change.moves, len(first.in_motion)) == (1, 0, 2)
    assert (second.number, second.change.moves, second.change.least_moves, second.in_motion) == (1, 2, 2, frozenset())


def test_a_unit_in_motion_that_returns_has_not_moved() -> None:
    holders = Holders()
    holders.assign({"a": ["t/0", "t/1"]}, COOPERATIVE)
    holders.assign({"a": ["t/0"], "b": []}, COOPERATIVE)

    back = holders.assign({"a": ["t/0", "t/1"]}, COOPERATIVE)

    assert (back.change.moves, back.change.least_moves) == (0, 0)


def test_the_only_unit_of_a_topic_moves_once() -> None:
    holders = Holders()
    holders.assign({"a": ["t/0", "u/0"]}, COOPERATIVE)

    rounds = [holders.assign({"a": ["t/0"], "b": given}, COOPERATIVE) for given in ([], ["u/0"])]

    assert [(each.number, each.change.moves, each.change.revoked) for each in rounds] == [(1, 0, 1), (2, 1, 0)]


def test_units_of_a_deleted_topic_are_new_when_it_returns() -> None:
    holders = Holders()
    holders.assign({"a": ["t/0", "u/0"], "b": ["u/1"]}, COOPERATIVE)
    for _ in range(2):  # the members give them up, and join once more, which hands nothing on
        last = holders.assign({"a": ["t/0"], "b": []}, COOPERATIVE)

    returned = holders.assign({"a": ["t/0", "u/1"], "b": ["u/0"]}, COOPERATIVE)

    assert last.in_motion == frozenset()
    assert (returned.number, returned.change.moves, len(returned.after.units - returned.before.units)) == (1, 0, 2)


def test_a_round_that_brings_new_units_is_another_step() -> None:
    holders = Holders()
    holders.assign({"a": ["t/0", "t/1"]}, COOPERATIVE)
    holders.assign({"a": ["t/0"], "b": []}, COOPERATIVE)

    grown = holders.assign({"a": ["t/0", "t/2"], "b": ["t/1"]}, COOPERATIVE)

    assert (grown.number, grown.change.moves) == (1, 1)


def test_a_copy_that_a_dead_member_had_moves_to_another() -> None:
    holders = Holders()
    holders.assign({"a": ["x", "y"], "b": ["x", "y"]}, "redundant")

    found = holders.assign({"a": ["x", "y"], "c": ["x", "y"]}, "redundant")

    # Both copies of `b` are now with `c`; those of `a` stay.
    assert found.change == (2, 2, 0, 2)


def test_holders_that_are_carried_go_on_as_if_nothing_had_been() -> None:
    straight, cut = Holders(), Holders()
    given: list[Shares] = [{"a": ["t/0", "t/1"]}, {"a": ["t/0"], "b": []}, {"a": ["t/0"], "b": ["t/1"]}]

    for shares in given:
        cut = Holders(json.loads(json.dumps(cut.state)))
        found, expected = cut.assign(shares, COOPERATIVE), straight.assign(shares, COOPERATIVE)
        assert (found.number, found.change, found.in_motion) == (expected.number, expected.change, expected.in_motion)
        assert cut.state == straight.state


# --- whatever the history ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, 3, 5])
def test_no_row_of_advice_is_impossible(seed: int) -> None:
    lines = ordered(simulated(seed))
    rows = list(replays(lines, STRATEGIES, SIMULATED))
    for _, _, closed in fold_lines(lines, SIMULATED):
        rows += closed

    assert {row.table for row in rows} >= {"advisor", "assignments"}
    assert [text for row in rows for text in broken_rules(row.table, row.values)] == []


def test_a_row_that_moves_less_than_the_least_is_named() -> None:
    row = next(replays(HandMade("range", 6).start(0).lines, []))
    impossible = {**as_dict(*row), "least_moves": 3}

    assert list(broken_rules("advisor", row.values)) == []
    [text] = broken_rules("advisor", tuple(impossible.values()))
    assert text.startswith("advisor: moves >= least_moves does not hold: generation_id 1, ")
