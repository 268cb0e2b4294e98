"""Strategies of the user's own in the SDK: user data both ways, cooperative rounds, and errors that all members see."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AsyncExitStack

import pytest

from rota.client import Consumer, GenerationFailed
from rota.core.assignors import (
    GroupAssignment,
    GroupSubscription,
    MemberSubscription,
    OwnAssignment,
    PartitionStrategy,
    TopicPartition,
    UserData,
    register_strategy,
)
from rota.server.runtime.coordinator import LocalCoordinator
from tests.client.stage import GROUP, SESSION_S, a_coordinator, a_worker, until
from tests.client.virtual_time import in_virtual_time
from tests.support.strategies import registered_for_one_test

WORK = {"work": 4}


class ByCache(PartitionStrategy):
    """A member reports how many partitions it has cached; the one with the most gets all, and reads the others'."""

    name = "by-cache"

    def __init__(self, *, cooperative: bool = False, cached: int = 0, fails: bool = False) -> None:
        self.cooperative = cooperative
        self.cached = cached
        self.fails = fails
        self.received: list[OwnAssignment] = []

    def subscription_user_data(self, topics: Collection[str], held: Collection[TopicPartition]) -> UserData:
        return UserData(str(self.cached).encode(), 2)

    def assign(self, group: GroupSubscription) -> GroupAssignment:
        if self.fails:
            raise ZeroDivisionError("a bug of the user's")
        best = max(group.members, key=cached_by)
        places = [TopicPartition("work", number) for number in range(group.partitions_per_topic["work"])]
        said = {member.member_id: UserData(best.member_id.encode(), 7) for member in group.members}
        return GroupAssignment({best.member_id: places}, said)

    def on_assignment(self, assignment: OwnAssignment) -> None:
        self.received.append(assignment)


def cached_by(member: MemberSubscription) -> int:
    return int(member.user_data.data) if member.user_data is not None and member.user_data.version == 2 else -1


@pytest.fixture(autouse=True)
def _one_test() -> Iterator[None]:
    with registered_for_one_test():
        yield


async def consumers(stack: AsyncExitStack, coordinator: LocalCoordinator, number: int, *names: str) -> list[Consumer]:
    return [
        await stack.enter_async_context(
            a_worker(coordinator).client.consumer(GROUP, WORK, names, session_timeout=SESSION_S)
        )
        for _ in range(number)
    ]


def at_rest(members: list[Consumer]) -> bool:
    return sum(len(member.assignment or ()) for member in members) == 4 and all(
        member.assignment is not None for member in members
    )


@pytest.mark.parametrize("cooperative", [False, True], ids=["eager", "cooperative"])
@in_virtual_time
async def test_user_data_goes_to_the_leader_and_comes_back(cooperative: bool) -> None:
    own = ByCache(cooperative=cooperative, cached=3)
    register_strategy(own)
    async with a_coordinator() as coordinator, AsyncExitStack() as stack:
        members = await consumers(stack, coordinator, 3, "by-cache")
        await until(lambda: at_rest(members) and len({member.generation_id for member in members}) == 1)

        (holder,) = [member for member in members if member.assignment]
        last = own.received[-3:]
        assert {each.user_data for each in last} == {UserData(holder.member_id.encode(), 7)}
        assert sorted(len(each.partitions) for each in last) == [0, 0, 4]


@in_virtual_time
async def test_a_raising_strategy_reaches_members_until_it_works() -> None:
    own = ByCache(fails=True)
    register_strategy(own)
    async with a_coordinator() as coordinator, AsyncExitStack() as stack:
        (member,) = await consumers(stack, coordinator, 1, "by-cache")
        failed = await anext(event async for event in member.events() if isinstance(event, GenerationFailed))
        assert "a bug of the user's" in failed.detail
        own.fails = False
        await until(lambda: at_rest([member]))
