"""Moves that would cross: the loads come out the same, the partitions stay where they were."""

from __future__ import annotations

from rota.core.assignors.sticky import Moves

A, B, C = range(3)


def test_a_move_against_an_earlier_one_undoes_that_one() -> None:
    holders, loads = [A, B], [3, 1, 0]
    moves = Moves(holders, loads)

    moves.move(0, B)
    moves.move(1, A)

    assert (holders, loads) == ([A, B], [3, 1, 0])


def test_a_move_through_a_third_member_undoes_both_moves() -> None:
    """0 went from A to B and on to C would be A to C, while 1 went from C to A."""
    holders, loads = [A, C], [2, 1, 4]
    moves = Moves(holders, loads)

    moves.move(0, B)
    moves.move(1, A)
    moves.move(0, C)

    assert holders == [A, C], "both are at home again"
    assert loads == [2, 1, 4], "B gave one, C got one"


def test_a_partition_that_returns_home_has_not_moved() -> None:
    holders, loads = [A, B], [2, 2, 0]
    moves = Moves(holders, loads)

    moves.move(0, C)
    moves.move(0, A)
    moves.move(1, A)

    assert (holders, loads) == ([A, A], [3, 1, 0])


def test_moves_that_do_not_cross_are_made_as_asked() -> None:
    holders, loads = [A, B, C], [1, 1, 1]
    moves = Moves(holders, loads)

    moves.move(0, B)
    moves.move(1, C)
    moves.move(2, A)

    assert (holders, loads) == ([B, C, A], [1, 1, 1])
