"""What a plan says of a hypothesis, and how it refuses one that does not fit the group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from rota.core.assignors import GroupAssignment, GroupSubscription, PartitionStrategy, TopicPartition, register_strategy
from rota.core.types import TopicFacts
from rota.core.types.consumer import Assignment, Subscription, encode_assignment, encode_subscription
from rota.core.types.plan import Hypothesis, PlannedMember, PlannedMove, PlannedRebalance, plan_rebalance
from rota.protocol import messages as m
from rota.protocol.errors import ErrorCode, RejectedRequest
from tests.support.strategies import registered_for_one_test
from tests.unit.group.driver import KEY, Core, a_join, a_stable_group, an_empty_shard
from tests.unit.group.served import a_served_group, candidates, finish

TOPICS = {"orders": TopicFacts(6), "payments": TopicFacts(2), "elsewhere": TopicFacts(9)}
BOTH = ("orders", "payments")


def a_member(
    member_id: str, orders: str = "", *protocols: str, topics: tuple[str, ...] = ("orders",)
) -> m.DescribedMember:
    """A member that holds these partitions of `orders`. An id of `i…` is also its instance id."""
    share = tuple(TopicPartition("orders", int(number)) for number in orders)
    instance = f"instance-{member_id}" if member_id.startswith("i") else None
    metadata, assignment = encode_subscription(Subscription(topics)), encode_assignment(Assignment(share))
    return described(member_id, instance, protocols or ("sticky",), metadata, assignment)


def described(
    member_id: str, instance: str | None, protocols: tuple[str, ...], metadata: bytes, assignment: bytes
) -> m.DescribedMember:
    return m.DescribedMember(
        member_id, instance, "", "", metadata, assignment, 1, 1, None, joined=True, protocols=protocols
    )


def a_group(*members: m.DescribedMember, name: str = "sticky") -> m.DescribeReply:
    return m.DescribeReply(
        group_id="g",
        state="Stable",
        generation_id=7,
        protocol_type="consumer",
        protocol_name=name,
        leader_id=members[0].member_id,
        members=members,
    )


TWO = a_group(a_member("a", "012"), a_member("i", "345"))


def plan(group: m.DescribeReply = TWO, **hypothesis: Any) -> PlannedRebalance:
    return plan_rebalance(group, TOPICS, Hypothesis(**hypothesis))


def refusal(group: m.DescribeReply = TWO, **hypothesis: Any) -> tuple[ErrorCode, str]:
    with pytest.raises(RejectedRequest) as refused:
        plan(group, **hypothesis)
    return refused.value.code, refused.value.detail


def sizes(planned: PlannedRebalance) -> dict[str, int]:
    return {each.member_id: sum(len(topic.partitions) for topic in each.after) for each in planned.members}


@pytest.fixture(autouse=True)
def _own_strategies() -> Iterator[None]:
    with registered_for_one_test():
        yield


def test_without_a_hypothesis_the_plan_is_a_rebalance() -> None:
    planned = plan()

    assert (planned.rounds, planned.moves, planned.least_moves, planned.moved) == (1, 0, 0, ())
    assert (planned.generation_id, planned.protocol_name, planned.planned_protocol_name) == (7, "sticky", "sticky")
    assert [each.pauses == each.before == each.after != () for each in planned.members] == [True, True]


@pytest.mark.parametrize("name", ["i", "instance-i"])
def test_a_member_that_leaves_is_named_by_its_id_or_its_instance(name: str) -> None:
    planned = plan(without=(name,))

    assert planned.moved == (PlannedMove("orders", (3, 4, 5), "i", "a"),)
    assert (planned.moves, planned.least_moves) == (3, 3)
    assert planned.members[1] == PlannedMember("i", "instance-i", "leaves", (m.TopicPartitions("orders", (3, 4, 5)),))


def test_a_quarantined_partition_goes_to_no_member() -> None:
    """The strategy gives it to a member, and the coordinator leaves it out: `a` may have one partition less."""
    group = replace(a_group(a_member("a", "012"), a_member("i", "45")), quarantined=("orders/3",))

    planned = plan(group)

    assert (planned.unowned, planned.moved) == ((m.TopicPartitions("orders", (3,)),), ())
    assert sizes(planned) == {"a": 3, "i": 2}
    assert planned.imbalance_after == 1
    assert planned.notes == ("quarantined, and so assigned to no member until it is released: orders/3",)


def test_where_all_leave_each_partition_is_without_a_member() -> None:
    planned = plan(without=("a", "i"))

    assert planned.unowned == (m.TopicPartitions("orders", (0, 1, 2, 3, 4, 5)),)
    assert (planned.rounds, planned.moves, planned.imbalance_after) == (0, 0, 0)


def test_partitions_without_a_subscriber_have_no_member() -> None:
    planned = plan(a_group(a_member("a", "0"), a_member("b", topics=BOTH)), without=("b",))

    assert planned.unowned == (m.TopicPartitions("payments", (0, 1)),)


def test_members_that_join_subscribe_as_most_members_do() -> None:
    group = a_group(a_member("odd", topics=("payments",)), a_member("a", "012345"), a_member("new-1"))

    planned = plan(group, more_members=2)

    assert [each.member_id for each in planned.members if each.fate == "joins"] == ["new-2", "new-3"]
    assert sizes(planned) == {"odd": 2, "a": 2, "new-1": 2, "new-2": 1, "new-3": 1}
    assert (planned.imbalance_before, planned.imbalance_after) == (6, 1)
    assert any("made up" in note for note in planned.notes)


def test_a_made_up_id_is_none_that_a_member_has() -> None:
    planned = plan(a_group(a_member("new-1", "012345")), more_members=1)

    assert sizes(planned) == {"new-1": 3, "new-2": 3}


def test_members_may_leave_and_join_in_one_plan() -> None:
    planned = plan(without=("i",), more_members=1)

    assert [(each.member_id, each.fate) for each in planned.members] == [
        ("a", "stays"),
        ("i", "leaves"),
        ("new-1", "joins"),
    ]
    assert sizes(planned) == {"a": 3, "i": 0, "new-1": 3}


def test_a_strategy_is_given_the_claims_of_a_next_generation() -> None:
    class Recorded(PartitionStrategy):
        name = "recorded"

        def assign(self, group: GroupSubscription) -> GroupAssignment:
            seen.append(group)
            return GroupAssignment({})

    seen: list[GroupSubscription] = []
    register_strategy(Recorded())

    plan(a_group(a_member("i", "01"), a_member("b", "2")), strategy="recorded", more_members=1)

    (group,) = seen
    assert group.generation_id == 8
    assert [
        (each.member_id, each.group_instance_id, [number for _, number in each.owned_partitions], each.generation)
        for each in group.members
    ] == [("i", "instance-i", [0, 1], 7), ("b", None, [2], 7), ("new-1", None, [], None)]


def test_more_partitions_without_moves_need_no_join_phase() -> None:
    planned = plan(partitions={"orders": 9})

    assert (planned.rounds, planned.moves, planned.imbalance_after) == (0, 0, 1)
    assert [each.pauses for each in planned.members] == [(), ()]


@pytest.mark.parametrize("more", [{"without": ("i",)}, {"more_members": 1}, {"strategy": "range"}])
def test_more_partitions_and_another_change_rebalance(more: dict[str, Any]) -> None:
    planned = plan(partitions={"orders": 6 if "strategy" in more else 9}, **more)

    assert planned.rounds == 1
    assert planned.members[0].pauses == planned.members[0].before


def test_under_a_cooperative_strategy_only_what_moves_pauses() -> None:
    eager = plan(more_members=1)
    planned = plan(more_members=1, strategy="cooperative-sticky")

    assert (eager.rounds, planned.rounds) == (1, 2)
    assert sizes(planned) == {"a": 2, "i": 2, "new-1": 2}
    assert [len(each.pauses[0].partitions) for each in planned.members[:2]] == [1, 1]
    assert [len(each.pauses[0].partitions) for each in eager.members[:2]] == [3, 3]
    assert "2 of 2 members do not list cooperative-sticky" in planned.notes[1]


@pytest.mark.parametrize(
    ("others", "rounds", "paused"),
    [((), 2, (1, 1)), (("sticky",), 1, (3, 3)), (("mine",), 1, (3, 3))],
    ids=["no other", "an eager one", "an unknown one"],
)
def test_members_that_list_an_eager_strategy_give_all_up(
    others: tuple[str, ...], rounds: int, paused: tuple[int, ...]
) -> None:
    names = ("cooperative-sticky", *others)
    group = a_group(a_member("a", "012", *names), a_member("b", "345", *names), name=names[0])

    planned = plan(group, more_members=1)

    assert planned.rounds == rounds
    assert tuple(len(each.pauses[0].partitions) for each in planned.members[:2]) == paused


@pytest.mark.parametrize(
    ("name", "weights", "is_noted"),
    [("weighted", "1,2", True), ("weighted", "", False), ("sticky", "1,2", False)],
)
@pytest.mark.parametrize("is_named", [True, False])
def test_a_plan_notes_weights_that_its_strategy_takes(name: str, weights: str, is_noted: bool, is_named: bool) -> None:
    group = a_group(a_member("a", "012", name), a_member("b", "345", name), name=name)
    topics = {"orders": TopicFacts(6, {"weights": weights})}

    planned = plan_rebalance(group, topics, Hypothesis(strategy=name if is_named else ""))

    assert list(planned.notes) == ["the strategy uses weights; the imbalance counts partitions"] * is_noted


def test_partitions_counted_by_the_leader_count_as_assigned() -> None:
    group = a_group(a_member("a", "01234567"), a_member("b"))

    planned = plan(group)
    named = plan(group, partitions={"orders": 10})

    assert sizes(planned) == {"a": 4, "b": 4}
    assert "registered with 6 partitions, and 8 are assigned" in planned.notes[0]
    assert sizes(named) == {"a": 5, "b": 5}


def test_an_assigned_partition_of_an_unregistered_topic_exists() -> None:
    share = encode_assignment(Assignment((TopicPartition("invoices", 0),)))
    member = replace(a_member("a", topics=("invoices",)), assignment=share)

    planned = plan(a_group(member))

    assert planned.members[0].after == (m.TopicPartitions("invoices", (0,)),)
    assert len(planned.notes) == 1
    assert planned.notes[0].startswith("topic invoices is registered with 0 partitions, and 1 are assigned: ")


def test_only_registered_partitions_count_for_server_assignment() -> None:
    member = described("a", None, ("server:range",), b'{"topics": ["pay*"]}', b'{"topics": {"payments": [0, 1]}}')

    planned = plan(a_group(member, name="server:range"), partitions={"payouts": 3})

    assert planned.members[0].after == (m.TopicPartitions("payments", (0, 1)), m.TopicPartitions("payouts", (0, 1, 2)))


@pytest.mark.parametrize(
    ("hypothesis", "detail"),
    [
        ({"without": ("a", "instance")}, "without[1]: unknown member 'instance'; did you mean 'instance-i'?"),
        ({"strategy": "stickey"}, "strategy: unknown strategy 'stickey'; did you mean 'sticky'?"),
        ({"strategy": "weighted(moves=3)"}, "strategy: weighted has no option 'moves=3'; its options: max_moves"),
        ({"strategy": "sticky((x)"}, "strategy: sticky has no option '(x'; its options: prefer"),
        (
            {"strategy": "server:cooperative-sticky"},
            "strategy must not be 'server:cooperative-sticky': the server assigns by no cooperative strategy",
        ),
        ({"partitions": {"order": 9}}, "partitions: unknown topic 'order'; did you mean 'orders'?"),
    ],
)
def test_a_wrong_hypothesis_is_rejected_with_the_nearest_name(hypothesis: dict[str, Any], detail: str) -> None:
    code, said = refusal(**hypothesis)

    assert code is ErrorCode.INVALID_REQUEST
    assert said.startswith(detail)


def test_a_topic_does_not_shrink() -> None:
    plan(partitions={"orders": 6})

    assert refusal(partitions={"orders": 5}) == (
        ErrorCode.INVALID_PARTITIONS,
        "partitions of orders must be at least 6: orders has as many, and a count only grows",
    )


def test_a_strategy_unknown_to_the_program_must_be_replaced() -> None:
    group = a_group(a_member("a", "012345", "mine"), name="mine")

    code, said = refusal(group)

    assert code is ErrorCode.INVALID_REQUEST
    assert said.startswith("strategy is missing: the members assign by 'mine', which this program does not know")
    assert sizes(plan(group, strategy="range")) == {"a": 6}


@pytest.mark.parametrize(
    ("broken", "what"),
    [
        (replace(a_member("a"), metadata=b"\x00"), "the subscription of a member cannot be read: "),
        (replace(a_member("a"), assignment=b"\x00"), "the assignment of a member cannot be read: "),
    ],
)
def test_bytes_that_are_no_consumers_are_named(broken: m.DescribedMember, what: str) -> None:
    code, said = refusal(a_group(broken))

    assert code is ErrorCode.INVALID_REQUEST
    assert said.startswith(what)


def test_a_strategy_that_fails_fails_the_plan() -> None:
    class Broken(PartitionStrategy):
        name = "broken"

        def assign(self, group: GroupSubscription) -> GroupAssignment:
            raise ZeroDivisionError("a bug of the user's")

    register_strategy(Broken())

    assert refusal(strategy="broken") == (
        ErrorCode.ASSIGNMENT_FAILED,
        "strategy broken failed: ZeroDivisionError: a bug of the user's",
    )


def test_fewer_members_are_named() -> None:
    assert refusal(more_members=-1)[1].startswith("more_members must be at least 0")


# --- the group ---------------------------------------------------------------------------------------


def test_an_answer_of_the_core_is_enough_for_a_plan() -> None:
    core = a_served_group()
    finish(core)

    planned = plan_rebalance(core.ask(m.DescribeGroup(*KEY)), {"documents": TopicFacts(4)}, Hypothesis())

    assert [each.before for each in planned.members] == [
        (m.TopicPartitions("documents", (0, 2)),),
        (m.TopicPartitions("documents", (1, 3)),),
    ]
    assert (planned.protocol_name, planned.notes) == ("server:sticky", ())


def a_group_in_its_join_phase() -> Core:
    core = an_empty_shard()
    core.ask(a_join(new="m0", protocol_type="consumer"))
    core.send(a_join("m0", protocol_type="consumer"))
    return core


def an_empty_group() -> Core:
    core = a_served_group()
    finish(core)
    core.ask(m.LeaveGroup(*KEY, tuple(m.LeavingMember(each, None) for each in core.ids)))
    return core


@pytest.mark.parametrize(
    ("core", "error", "detail"),
    [
        (candidates, ErrorCode.INVALID_REQUEST, "the group is of type 'leader': only groups of type 'consumer' share"),
        (a_stable_group, ErrorCode.INVALID_REQUEST, "the group is of type '"),
        (a_group_in_its_join_phase, ErrorCode.REBALANCE_IN_PROGRESS, "the group rebalances ("),
        (a_served_group, ErrorCode.REBALANCE_IN_PROGRESS, "the group rebalances ("),
        (an_empty_group, ErrorCode.INVALID_REQUEST, "the group has no members, so there is no assignment to plan from"),
    ],
)
def test_other_groups_are_not_planned(core: Any, error: ErrorCode, detail: str) -> None:
    with pytest.raises(RejectedRequest) as refused:
        plan_rebalance(core().ask(m.DescribeGroup(*KEY)), TOPICS, Hypothesis())

    assert refused.value.code is error
    assert refused.value.detail.startswith(detail)
