"""The distance between two assignments, and the rounds until a strategy settles."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from rota.core.assignors import (
    GroupAssignment,
    GroupSubscription,
    MemberSubscription,
    PartitionStrategy,
    TopicPartition,
    register_strategy,
)
from rota.core.assignors.forecast import MOST_ROUNDS, AnyShares, forecast, imbalance, least_moves, moves_between
from tests.support.strategies import registered_for_one_test


def partitions(*numbers: int) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition("t", number) for number in numbers)


def fewest_moves_of_all(before: AnyShares, after: AnyShares) -> int:
    """Each assignment of these partitions to these members is tried that is as even as `after`."""
    sizes = sorted(len(share) for share in after.values())
    owned = [partition for share in after.values() for partition in share]
    found = []
    for owners in product(after, repeat=len(owned)):
        tried = {member: [p for p, owner in zip(owned, owners, strict=True) if owner == member] for member in after}
        if all(sizes[0] <= len(share) <= sizes[-1] for share in tried.values()):
            found.append(len(moves_between(before, tried)))
    return min(found)


def a_random_assignment(random: Random, number: int, members: str) -> AnyShares:
    owners = [random.choice(members + "-") for _ in range(number)]
    return {
        member: [p for p, o in zip(partitions(*range(number)), owners, strict=True) if o == member]
        for member in members
    }


@pytest.mark.parametrize("seed", range(40))
def test_no_assignment_as_even_needs_fewer_moves_than_the_least(seed: int) -> None:
    random = Random(seed)
    number = random.randint(1, 6)
    before = a_random_assignment(random, number, random.choice(["ab", "abc", "xab"]))
    after = a_random_assignment(random, number, random.choice(["ab", "abc", "abd"]))

    assert least_moves(before, after) == fewest_moves_of_all(before, after)


def test_a_partition_that_no_member_had_does_not_move() -> None:
    before = {"a": partitions(0, 1), "b": partitions(2)}
    after = {"b": partitions(0, 2, 3), "c": partitions(1)}

    moves = [(move.partition.partition, move.source, move.target) for move in moves_between(before, after)]

    assert moves == [(0, "a", "b"), (1, "a", "c")]


def test_each_copy_that_is_lost_moves_to_one_that_is_added() -> None:
    before = {"a": partitions(0), "b": partitions(0), "c": ()}
    after = {"b": partitions(0), "c": partitions(0), "d": partitions(0)}

    assert [(move.source, move.target) for move in moves_between(before, after)] == [("a", "c")]


def test_the_imbalance_is_between_the_fullest_and_the_emptiest() -> None:
    assert imbalance({"a": partitions(0, 1, 2), "b": partitions(3), "c": partitions(4, 5)}) == 2
    assert imbalance({}) == 0


def test_a_second_round_comes_only_where_a_member_must_revoke() -> None:
    held = MemberSubscription("a", None, ("t",), partitions(0, 1, 2, 3), 1)
    joins = MemberSubscription("b", None, ("t",))

    alone = forecast("cooperative-sticky", GroupSubscription({"t": 4}, [held], generation_id=2))
    shared = forecast("cooperative-sticky", GroupSubscription({"t": 4}, [held, joins], generation_id=2))

    assert (alone.rounds, alone.revoked) == (1, {"a": frozenset()})
    assert (shared.rounds, {m: len(share) for m, share in shared.shares.items()}) == (2, {"a": 2, "b": 2})
    assert shared.revoked["a"] == set(partitions(0, 1, 2, 3)) - set(shared.shares["a"])


def test_an_unstable_strategy_ends_the_forecast_all_the_same() -> None:
    class Restless(PartitionStrategy):
        name = "restless"
        cooperative = True

        def assign(self, group: GroupSubscription) -> GroupAssignment:
            moving = group.generation_id % 2
            return GroupAssignment({"a": partitions(1 - moving), "b": partitions(moving)})

    with registered_for_one_test():
        register_strategy(Restless())
        members = [MemberSubscription("a", None, ("t",), partitions(0, 1), 1), MemberSubscription("b", None, ("t",))]

        assert forecast("restless", GroupSubscription({"t": 2}, members, generation_id=1)).rounds == MOST_ROUNDS
