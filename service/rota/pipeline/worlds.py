"""A group's history as one strategy would have had it: the same members and units at each step, and its own shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from rota.core.assignors import MemberSubscription, assign, strategy
from rota.core.assignors.forecast import COOPERATIVE_STICKY, STICKY, Partitions, keep_evenly, shares_by_count
from rota.core.types import Generation, JoinedWith, MalformedMetadata, TopicFacts
from rota.core.types.consumer import group_subscription
from rota.pipeline.facts.steps import MOST_ROUNDS, AnyShares, Change, Holding, Round

Subscriptions = Mapping[str, MemberSubscription]
"""By member id, with the topics that its patterns stand for."""
Members = Sequence[tuple[str, str | None]]
"""Member ids, each with its instance id if it is a static member."""
NO_PARTITIONS = Partitions({})
_NOTHING = Holding({})
_BY_NUMBER = (STICKY, COOPERATIVE_STICKY)


class Seats(NamedTuple):
    """The members of a step in the orders that strategies take them in."""

    by_id: list[str]
    in_turn: list[str]
    """As in `rota.core.assignors.model.static_members_first`."""
    instance_ids: dict[str, str | None]
    said: Subscriptions | None = None
    """What each member says of itself; None if that is the same of all, and no more than the topics of all units."""

    @classmethod
    def of(cls, members: Members, said: Subscriptions | None = None) -> Seats:
        instance_ids = dict(members)
        by_id = sorted(instance_ids)
        static = sorted([(instance_id, m) for m, instance_id in members if instance_id is not None])
        if not static:
            return cls(by_id, by_id, instance_ids, said)
        dynamic = [member_id for member_id in by_id if instance_ids[member_id] is None]
        return cls(by_id, [member_id for _, member_id in static] + dynamic, instance_ids, said)


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


class Kept(NamedTuple):
    """A step under `sticky`, and what the first round of `cooperative-sticky` aims for."""

    before: Holding
    after: Holding
    change: Change


class World:
    """What members hold where one strategy has assigned from the beginning.

    The strategies that are asked at each step of a long history know partitions by number
    (`rota.core.assignors.forecast`), all others by name. `holding` is as the last one left it.
    """

    def __init__(self) -> None:
        self.holding = _NOTHING
        self._partitions: Partitions | None = None
        """Those whose numbers `holding` has; None where it has names."""

    def step(
        self, name: str, partitions: Partitions, seats: Seats, *, joined: bool = True, others: list[Kept] | None = None
    ) -> Outcome:
        """Assign anew by the strategy `name`, by what members say of themselves (`seats.said`).

        `others` is what worlds by the sticky strategies came to in the same step; one that is asked adds to it.
        """
        found = strategy(name)
        # Where the journal's beginning was pruned, an assignment may be known, and none of the members.
        if (
            seats.said is not None
            or not seats.by_id
            or (found.remembers and not (name in _BY_NUMBER and self.holding.exclusive))
        ):
            outcome = self._settled(name, partitions, seats, cooperative=found.cooperative)
        elif found.remembers:
            assigned = self._revoked if found.cooperative else self._kept
            outcome = assigned(partitions, seats, [] if others is None else others)
        else:
            outcome = self._by_count(name, partitions, seats)
        if not joined and not outcome.change.revoked:
            # Nothing has to be given up: the leader assigns it without a join phase, as the real one did.
            outcome.rounds = 0
        self.holding = outcome.after
        return outcome

    def clear(self) -> None:
        self.holding, self._partitions = _NOTHING, None

    def rename(self, old_id: str, new_id: str) -> None:
        if old_id in self.holding.held:
            self.holding = self.holding.renamed(old_id, new_id)

    def held_by(self, member_id: str) -> int:
        """How many units the member has."""
        return len(self.holding.held.get(member_id, ()))

    # --- by number ----------------------------------------------------------------------------------

    def _by_count(self, name: str, partitions: Partitions, seats: Seats) -> Outcome:
        """One round of a strategy that does not ask what members hold."""
        before = self._numbered(partitions)
        shares = shares_by_count(name, partitions, len(seats.in_turn))
        after = Holding.of_all(dict(zip(seats.in_turn, shares, strict=True)), partitions.all)
        return Outcome(after, after.size, after.change_from(before), 1, cooperative=False)

    def _kept(self, partitions: Partitions, seats: Seats, others: list[Kept]) -> Outcome:
        """The one round of `sticky`."""
        kept = self._aim(partitions, seats, others)
        return Outcome(kept.after, kept.after.size, kept.change, 1, cooperative=False)

    def _revoked(self, partitions: Partitions, seats: Seats, others: list[Kept]) -> Outcome:
        """As `_settled`, of `cooperative-sticky`."""
        aim = self._aim(partitions, seats, others)
        owned, held, rounds, revoked = aim.before.held, aim.after.held, 1, 0
        moving = _lost(owned, held) if aim.change.revoked else frozenset()
        while moving:
            revoked += len(moving)
            owned = {member_id: share - moving for member_id, share in held.items()}
            if rounds == MOST_ROUNDS:
                held = owned
                break
            held = keep_evenly(partitions, seats.by_id, owned)
            rounds, moving = rounds + 1, _lost(owned, held)
        if held == aim.after.held:
            after, change = aim.after, aim.change
        else:
            after = Holding(held)
            change = after.change_from(aim.before)
        return Outcome(after, after.size, change._replace(revoked=revoked), rounds, cooperative=True)

    def _aim(self, partitions: Partitions, seats: Seats, others: list[Kept]) -> Kept:
        """The assignment that both aim for. Worlds in which members held the same share it, and what they hold then."""
        before = self._numbered(partitions)
        for kept in others:
            if kept.before is before or kept.before.held == before.held:
                return kept
        owned = before.held
        if not before.units <= partitions.all:
            owned = {member_id: share & partitions.all for member_id, share in owned.items()}
        after = Holding.of_all(keep_evenly(partitions, seats.by_id, owned), partitions.all)
        others.append(Kept(before, after, after.change_from(before)))
        return others[-1]

    def _numbered(self, partitions: Partitions) -> Holding:
        """The holding in numbers of these partitions; those that are there no more have higher ones."""
        if self._partitions is not partitions:
            numbers = partitions.numbers()
            self.holding = Holding(
                {
                    member_id: [numbers.setdefault(name, len(numbers)) for name in share]
                    for member_id, share in self.named().shares.items()
                }
            )
            self._partitions = partitions
        return self.holding

    # --- by name ------------------------------------------------------------------------------------

    def _settled(self, name: str, partitions: Partitions, seats: Seats, *, cooperative: bool) -> Outcome:
        """The assignment when no member has to give anything up any more; `revoked` counts those of all rounds."""
        before = owned = self.named()
        rounds = revoked = 0
        while True:
            after = Holding(assign(name, partitions.counts, _subscriptions(partitions, seats, owned.shares)))
            rounds, lost = rounds + 1, after.revoked_from(owned) if cooperative else 0
            revoked += lost
            if not lost or rounds == MOST_ROUNDS:
                break
            owned = after
        change = after.change_from(before)
        self._partitions = None
        return Outcome(
            after, after.size, change if rounds == 1 else change._replace(revoked=revoked), rounds, cooperative
        )

    def named(self) -> Holding:
        """The holding in names."""
        if self._partitions is None:
            return self.holding
        names = self._partitions.names()
        return Holding({m: [names[number] for number in sorted(share)] for m, share in self.holding.shares.items()})


def _lost(owned: Mapping[str, frozenset[int]], held: Mapping[str, frozenset[int]]) -> frozenset[int]:
    """What members that stay have to give up."""
    return _NO_NUMBERS.union(*[had - held[member_id] for member_id, had in owned.items() if member_id in held])


def _subscriptions(partitions: Partitions, seats: Seats, owned: AnyShares) -> list[MemberSubscription]:
    topics, said = tuple(partitions.counts), seats.said or {}
    alike = MemberSubscription("", topics=topics)
    return [
        replace(
            said.get(member_id, alike),
            member_id=member_id,
            group_instance_id=instance_id,
            owned_partitions=owned.get(member_id, ()),
            generation=1,
        )
        for member_id, instance_id in seats.instance_ids.items()
    ]


# Members come again with the same metadata in most generations.
@lru_cache(maxsize=256)
def subscriptions_of(
    members: tuple[tuple[str, str | None, bytes], ...], partitions: Partitions
) -> Subscriptions | None:
    """What the members of a consumer group say of themselves: topics, capacity, rack, user data; patterns resolved.

    `members`: id, instance id, metadata. None if all want all topics and say nothing else, or cannot be read.
    """
    joined = [JoinedWith(*member) for member in members]
    topics = {topic: TopicFacts(count) for topic, count in partitions.counts.items()}
    try:
        said = group_subscription(Generation(1, "", "", joined), topics).members
    except MalformedMetadata:
        return None
    every = set(partitions.counts)
    plain = MemberSubscription("", topics=())
    alike = all(
        every <= set(each.topics) and (each.capacity, each.rack, each.user_data) == (plain.capacity, None, None)
        for each in said
    )
    return None if alike else {each.member_id: each for each in said}


# What a group shares hardly ever changes from one generation to the next.
@lru_cache(maxsize=64)
def partitions_of(units: frozenset[str]) -> Partitions:
    """All that topics have: up to the highest partition that was assigned. Opaque units are one topic's."""
    counts: dict[str, int] = {}
    for unit in units:
        topic, slash, number = unit.rpartition("/")
        if not slash or not number.isdigit():
            return Partitions({"units": len(units)})
        counts[topic] = max(counts.get(topic, 0), int(number) + 1)
    return Partitions(counts)


_NO_NUMBERS: frozenset[int] = frozenset()
