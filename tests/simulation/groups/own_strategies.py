"""Strategies of the user's own for the simulated groups: exact about user data, and faulty ones."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rota.core.assignors import (
    GroupAssignment,
    GroupSubscription,
    OwnAssignment,
    PartitionStrategy,
    Shares,
    TopicPartition,
    UserData,
    assign,
    register_strategy,
)
from tests.simulation.loop import pause

_FAULTY_EVERY = 3
"""One generation of so many, and that one once: it may have to be assigned again for topics that change in it."""
_SLOW_S = 0.4
_ASSIGNED = UserData(b"assigned", version=2)

STAGES: tuple[tuple[tuple[str, ...], ...], ...] = (
    (("own-even",),),
    (("own-cooperative",),),
    (("server:own-even",),),
    (("range",), ("own-cooperative", "range"), ("own-cooperative",)),
    (("own-raising",),),
    (("own-wrong",),),
    (("own-slow",),),
    (("by-topic(t0=range, *=sticky)",),),
    (("cooperative-by-topic(t0=sticky, *=weighted)",),),
)
"""As `plan.STRATEGIES`."""


class _Even(PartitionStrategy):
    """As `sticky`. It raises where user data does not arrive as it was sent: of each member, and of the leader."""

    def __init__(self, name: str, *, cooperative: bool = False) -> None:
        self.name = name
        self.cooperative = cooperative

    def subscription_user_data(self, topics: Collection[str], held: Collection[TopicPartition]) -> UserData:
        return _said(topics)

    def assign(self, group: GroupSubscription) -> GroupAssignment:
        for member in group.members:
            if member.user_data != _said(member.topics):
                raise AssertionError(f"user data of {member.member_id} is {member.user_data}")
        shares = self._shares(group)
        return GroupAssignment(shares, {member.member_id: _ASSIGNED for member in group.members})

    def _shares(self, group: GroupSubscription) -> Shares:
        return assign("sticky", group.partitions_per_topic, group.members, None, None)

    def on_assignment(self, assignment: OwnAssignment) -> None:
        if assignment.partitions and assignment.user_data != _ASSIGNED:
            raise AssertionError(f"user data of the assignment is {assignment.user_data}")


class _Faulty(_Even):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.failed: set[int] = set()
        """The generations of this world that it has failed."""

    def _fails(self, generation_id: int) -> bool:
        if generation_id % _FAULTY_EVERY or generation_id in self.failed:
            return False
        self.failed.add(generation_id)
        return True


class _Raising(_Faulty):
    def _shares(self, group: GroupSubscription) -> Shares:
        if self._fails(group.generation_id):
            raise ZeroDivisionError("a strategy's own exception")
        return super()._shares(group)


class _Wrong(_Faulty):
    def _shares(self, group: GroupSubscription) -> Shares:
        shares = super()._shares(group)
        return {**shares, "a stranger": []} if self._fails(group.generation_id) else shares


class _Slow(_Even):
    """It takes its time."""

    def _shares(self, group: GroupSubscription) -> Shares:
        pause(_SLOW_S)
        return super()._shares(group)


def _said(topics: Collection[str]) -> UserData:
    return UserData(",".join(sorted(topics)).encode(), version=1)


def register_all() -> None:
    """Make them known to this process, as they are in a new world."""
    for own in _ALL:
        if isinstance(own, _Faulty):
            own.failed.clear()
        register_strategy(own)


_ALL: Sequence[PartitionStrategy] = (
    _Even("own-even"),
    _Even("own-cooperative", cooperative=True),
    _Raising("own-raising"),
    _Wrong("own-wrong"),
    _Slow("own-slow"),
)
