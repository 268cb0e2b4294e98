"""Plans that come true: what a plan says of a departure is what members of the SDK then see."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from itertools import chain

import pytest

from rota.client import Consumer
from rota.core.assignors import (
    GroupAssignment,
    GroupSubscription,
    PartitionStrategy,
    TopicPartition,
    UserData,
    register_strategy,
)
from rota.core.types.plan import PlannedMember, PlannedRebalance
from rota.protocol.messages import TopicPartitions
from rota.server.runtime.coordinator import LocalCoordinator
from tests.client.stage import GROUP, SESSION_S, Worker, a_coordinator, a_worker, until
from tests.client.virtual_time import in_virtual_time
from tests.support.strategies import registered_for_one_test

TOPICS = {"orders": 7, "payments": 4}
ATTRIBUTES = {
    "orders": {"weights": "5,1,1,2,1,1,3", "racks": "a,b,a,b,a,b,a"},
    "payments": {"weights": "1,1,4,1", "racks": "b,b,a,a"},
}
STRATEGIES = [
    "range",
    "roundrobin",
    "sticky",
    "cooperative-sticky",
    "copartitioned",
    "rack-aware",
    "weighted",
    "redundant(2)",
    "cooperative-by-topic(orders=copartitioned, *=roundrobin)",
    "server:sticky",
    "server:range",
    "clockwise",
    "server:clockwise-eager",
]
Shares = Mapping[str, frozenset[TopicPartition]]


class Clockwise(PartitionStrategy):
    """Partitions go round the members in the order of their user data; unlike `sticky` it moves many."""

    def __init__(self, name: str, *, cooperative: bool) -> None:
        self.name = name
        self.cooperative = cooperative

    def subscription_user_data(self, topics: object, held: object) -> UserData:
        return UserData(b"x")

    def assign(self, group: GroupSubscription) -> GroupAssignment:
        ordered = sorted(group.members, key=lambda member: (member.user_data is None, member.member_id))
        counts = group.partitions_per_topic
        every = [TopicPartition(topic, n) for topic, count in sorted(counts.items()) for n in range(count)]
        return GroupAssignment({m.member_id: every[at :: len(ordered)] for at, m in enumerate(ordered)})


@pytest.fixture(autouse=True)
def _own_strategies() -> Iterator[None]:
    with registered_for_one_test():
        register_strategy(Clockwise("clockwise", cooperative=True))
        register_strategy(Clockwise("clockwise-eager", cooperative=False))
        yield


class Fleet:
    """Consumers of one group that came one after the other, and the worker that plans."""

    def __init__(self, coordinator: LocalCoordinator, stack: AsyncExitStack) -> None:
        self._coordinator = coordinator
        self._stack = stack
        self.admin = a_worker(coordinator).client
        self.members: list[tuple[Worker, Consumer]] = []

    async def grow(self, number: int, *strategies: str) -> None:
        for _ in range(number):
            worker = a_worker(self._coordinator)
            consumer = worker.client.consumer(
                GROUP,
                list(TOPICS),
                strategies,
                session_timeout=SESSION_S,
                rack_id="ab"[len(self.members) % 2],
                capacity=1.0 + len(self.members) % 2,
                group_instance_id=f"i{len(self.members)}" if len(self.members) % 3 == 2 else None,
                on_revoked=worker.on_revoked,
                leave_on_close=True,
            )
            self.members.append((worker, await self._stack.enter_async_context(consumer)))
            await until(self.is_at_rest)

    def is_at_rest(self) -> bool:
        held = [each.assignment for _, each in self.members]
        same_generation = len({each.generation_id for _, each in self.members}) == 1
        every = set(chain.from_iterable(each for each in held if each is not None))
        return same_generation and None not in held and len(every) == sum(TOPICS.values())

    def shares(self) -> dict[str, frozenset[TopicPartition]]:
        return {each.member_id: frozenset(each.assignment or ()) for _, each in self.members}

    async def leave(self, at: int) -> Shares:
        """Let one leave; returns what the others revoked meanwhile."""
        _, leaver = self.members.pop(at)
        for worker, _ in self.members:
            worker.diary.clear()
        generation_id = leaver.generation_id
        await leaver.close()
        await until(lambda: all(each.generation_id > generation_id for _, each in self.members) and self.is_at_rest())
        return {each.member_id: frozenset(chain(*(p for _, _, p in worker.diary))) for worker, each in self.members}


def named(partitions: tuple[TopicPartitions, ...]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(each.topic, number) for each in partitions for number in each.partitions)


def staying(plan: PlannedRebalance) -> list[PlannedMember]:
    return [each for each in plan.members if each.fate == "stays"]


@pytest.mark.parametrize("strategy", STRATEGIES)
@in_virtual_time
async def test_the_plan_of_a_departure_is_what_happens_then(strategy: str) -> None:
    async with a_coordinator() as coordinator, AsyncExitStack() as stack:
        fleet = Fleet(coordinator, stack)
        for topic, partitions in TOPICS.items():
            await fleet.admin.put_topic(topic, partitions, ATTRIBUTES[topic])
        await fleet.grow(4, strategy)
        generation_id, before = fleet.members[0][1].generation_id, fleet.shares()
        leaver = fleet.members[1][1].member_id

        plan = await fleet.admin.plan_group(GROUP, without=[leaver])
        assert fleet.shares() == before
        revoked = await fleet.leave(1)

        assert {each.member_id: named(each.before) for each in plan.members} == before
        assert {each.member_id: named(each.after) for each in staying(plan)} == fleet.shares()
        assert {each.member_id: named(each.pauses) for each in staying(plan)} == revoked
        assert plan.rounds == fleet.members[0][1].generation_id - generation_id
        assert (plan.generation_id, plan.unowned) == (generation_id, ())
        assert plan.least_moves <= plan.moves
