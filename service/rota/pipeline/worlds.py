"""A group's history as one strategy would have had it: the same members and units at each step, and its own shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from rota.assignors import MemberSubscription, assign, strategy
from rota.pipeline.facts.churn import AnyShares, Change, Holding
from rota.pipeline.facts.steps import MOST_ROUNDS, Round

Members = Sequence[tuple[str, str | None]]
"""Member ids, each with its instance id if it is a static member."""
_NOTHING = Holding({})


@dataclass(slots=True)
class Outcome:
    """What a step came to."""

    after: Holding
    units: int
    change: Change
    rounds: int
    cooperative: bool

    @property
    def paused_units(self) -> int:
        """The units that stop: all in an eager join phase, those that move otherwise."""
        return self.change.moves if self.cooperative or not self.rounds else self.units

    def continued(self, found: Round, *, joined: bool) -> Outcome:
        """The same step after one more round of it."""
        units = len(found.after.units) + len(found.in_motion)
        change = Change(*map(sum, zip(self.change, found.change, strict=True)))
        return Outcome(found.after, units, change, self.rounds + joined, self.cooperative or found.number > 1)


class World:
    """What members hold where one strategy has assigned from the beginning."""

    def __init__(self) -> None:
        self.holding = _NOTHING

    def step(
        self,
        name: str,
        counts: Mapping[str, int],
        members: Members,
        *,
        joined: bool = True,
        forgetful: Sequence[MemberSubscription] = (),
    ) -> Outcome:
        """Assign anew by the strategy `name`. `forgetful` are the members that claim nothing, if they are at hand."""
        found = strategy(name)
        if found.remembers:
            outcome = self._settled(name, counts, members, cooperative=found.cooperative)
        else:
            after = Holding(assign(name, counts, forgetful or subscriptions(counts, members)))
            outcome = Outcome(after, after.size, after.change_from(self.holding), 1, cooperative=False)
        if not joined and not outcome.change.revoked:
            # Nothing has to be given up: the leader assigns it without a join phase, as the real one did.
            outcome.rounds = 0
        self.holding = outcome.after
        return outcome

    def clear(self) -> None:
        self.holding = _NOTHING

    def rename(self, old_id: str, new_id: str) -> None:
        shares = self.holding.shares
        if old_id in shares:
            self.holding = Holding({(new_id if m == old_id else m): share for m, share in shares.items()})

    def held_by(self, member_id: str) -> int:
        """How many units the member has."""
        return len(self.holding.held.get(member_id, ()))

    def _settled(self, name: str, counts: Mapping[str, int], members: Members, *, cooperative: bool) -> Outcome:
        """The assignment when no member has to give anything up any more; `revoked` counts those of all rounds."""
        before = owned = self.holding
        rounds = revoked = 0
        while True:
            after = Holding(assign(name, counts, subscriptions(counts, members, owned.shares)))
            rounds, lost = rounds + 1, after.revoked_from(owned) if cooperative else 0
            revoked += lost
            if not lost or rounds == MOST_ROUNDS:
                break
            owned = after
        change = after.change_from(before)
        return Outcome(
            after, after.size, change if rounds == 1 else change._replace(revoked=revoked), rounds, cooperative
        )


def subscriptions(
    counts: Mapping[str, int], members: Members, owned: AnyShares | None = None
) -> list[MemberSubscription]:
    """Each member may get all that the group has: the real subscriptions decide only which members there are."""
    topics, held = tuple(counts), owned or {}
    return [
        MemberSubscription(member_id, instance_id, topics, held.get(member_id, ()), 1)
        for member_id, instance_id in members
    ]


# What a group shares hardly ever changes from one generation to the next.
@lru_cache(maxsize=64)
def counts_of(units: frozenset[str]) -> Mapping[str, int]:
    """How many partitions each topic has: the highest that was assigned, plus one. Opaque units are one topic's."""
    counts: dict[str, int] = {}
    for unit in units:
        topic, slash, number = unit.rpartition("/")
        if not slash or not number.isdigit():
            return {"units": len(units)}
        counts[topic] = max(counts.get(topic, 0), int(number) + 1)
    return counts
