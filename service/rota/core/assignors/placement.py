"""Strategies in which partitions are not all alike: `weighted`, `copartitioned`, `rack-aware`, `redundant`.

Their engine places things of different weight on members of different capacity: keep, fill up, then move what lightens
most. A member's *level* is its load over its capacity. A thing moves only if its new holder then has a lower level than
the old one did, so the levels, sorted from the highest, fall with every move, and the passes come to an end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from typing import TypeAlias

from rota.core.assignors.model import (
    GroupSubscription,
    MemberSubscription,
    PartitionWeights,
    Shares,
    TopicPartition,
)
from rota.core.assignors.numbering import NOBODY, Numbering, candidates_of_topics, racks_of_topic, read_claims

Ranks: TypeAlias = tuple[int, ...]
_Heap: TypeAlias = list[tuple[float, int]]

_TOLERANCE = 1e-9
"""Sums of floats that should be equal differ by less, of the larger one."""


@dataclass(frozen=True, slots=True)
class Thing:
    """A unit that is placed on one member, of the set of candidates with this index.

    Things with the same `apart` (which is not negative) are never placed on one member.
    """

    candidates: int
    weight: float = 1.0
    owner: int = NOBODY
    apart: int = -1


def place(
    things: Sequence[Thing], candidates: Sequence[Ranks], capacities: Sequence[float], max_moves: int | None = None
) -> list[int]:
    """The rank that holds each thing, `NOBODY` where it has no candidate left.

    `candidates` are the sets that things speak of, `capacities` those of the members.

    At most `max_moves` things are taken from an owner that could keep them, however unbalanced that leaves the rest.
    """
    placement = _Placement(things, candidates, capacities, max_moves)
    placement.keep_owned()
    placement.give_free()
    placement.balance()
    return placement.holders


class _Placement:
    """The holders while things are placed."""

    def __init__(
        self,
        things: Sequence[Thing],
        candidates: Sequence[Ranks],
        capacities: Sequence[float],
        max_moves: int | None,
    ) -> None:
        self._things = things
        self._candidates = candidates
        self._capacities = capacities
        self._moves_left = len(things) if max_moves is None else max_moves
        self._apart: dict[int, set[int]] = {}
        self._shares: list[dict[int, None]] = [{} for _ in capacities]
        self.holders = [NOBODY] * len(things)
        self.loads = [0.0] * len(capacities)

    def keep_owned(self) -> None:
        """Keep each thing with its owner, if the owner may still have it."""
        allowed = [frozenset(ranks) for ranks in self._candidates]
        for index, thing in enumerate(self._things):
            if thing.owner in allowed[thing.candidates] and self._may_hold(thing, thing.owner):
                self._put(index, thing.owner)

    def give_free(self) -> None:
        """The heaviest first, each to the candidate that stands lowest."""
        free = [index for index, holder in enumerate(self.holders) if holder == NOBODY]
        sizes = [len(ranks) for ranks in self._candidates]
        free.sort(key=lambda index: (sizes[self._things[index].candidates], -self._things[index].weight))
        heaps = [self._heaps(ranks) for ranks in self._candidates]
        for index in free:
            self._give(index, heaps[self._things[index].candidates])

    def balance(self) -> None:
        """Move things as long as that lowers a high load, and the budget allows it."""
        moved = True
        while moved:
            moved = False
            for rank in sorted(range(len(self.loads)), key=lambda rank: (-self._level(rank), rank)):
                while self._lighten(rank):
                    moved = True

    def _heaps(self, candidates: Sequence[int]) -> list[_Heap]:
        heaps = [[(self._level(rank), rank) for rank in alike] for alike in self._by_capacity(candidates)]
        for heap in heaps:
            heapify(heap)
        return heaps

    def _give(self, index: int, heaps: Sequence[_Heap]) -> None:
        """Put a thing where that makes the lowest level. Each heap holds candidates of one capacity."""
        thing = self._things[index]
        firsts = [self._first_in(heap, thing) for heap in heaps]
        ranks = [rank for rank in firsts if rank != NOBODY]
        if ranks:
            rank = min(ranks, key=lambda rank: (self._level_with(rank, thing), rank))
            self._put(index, rank)

    def _first_in(self, heap: _Heap, thing: Thing) -> int:
        """The lowest that may hold the thing. Levels only rise here: an entry that surfaces is brought up to date."""
        passed: _Heap = []
        found = NOBODY
        while heap and found == NOBODY:
            level, rank = heap[0]
            if level != self._level(rank):
                heapreplace(heap, (self._level(rank), rank))
            elif self._may_hold(thing, rank):
                found = rank
            else:
                passed.append(heappop(heap))
        for entry in passed:
            heappush(heap, entry)
        return found

    def _lighten(self, source: int) -> bool:
        """Make the best move away from a member; whether there was one."""
        before = self._level(source)
        lower: dict[int, list[list[int]]] = {}
        best: tuple[bool, float, int, int] | None = None
        for index in self._shares[source]:
            thing = self._things[index]
            owned = thing.owner == source
            if (owned and not self._moves_left) or not thing.weight:
                continue
            if thing.candidates not in lower:
                lower[thing.candidates] = self._lower_than(before, self._candidates[thing.candidates])
            firsts = (next((r for r in alike if self._may_hold(thing, r)), NOBODY) for alike in lower[thing.candidates])
            after, target = min(((self._level_with(r, thing), r) for r in firsts if r != NOBODY), default=(before, -1))
            if after < before * (1 - _TOLERANCE):
                highest = max(after, (self.loads[source] - thing.weight) / self._capacities[source])
                best = min(best or (True, before, index, target), (owned, highest, index, target))
        if best is None:
            return False
        self._move(best[2], source, best[3])
        return True

    def _lower_than(self, level: float, candidates: Sequence[int]) -> list[list[int]]:
        """The candidates below a level, those of the same capacity together, the lowest first."""
        return [
            [rank for _, rank in sorted((self._level(rank), rank) for rank in alike if self._level(rank) < level)]
            for alike in self._by_capacity(candidates)
        ]

    def _by_capacity(self, candidates: Sequence[int]) -> list[list[int]]:
        """Among members of one capacity the lowest is the best for any weight."""
        alike: dict[float, list[int]] = {}
        for rank in candidates:
            alike.setdefault(self._capacities[rank], []).append(rank)
        return list(alike.values())

    def _move(self, index: int, source: int, target: int) -> None:
        thing = self._things[index]
        self._moves_left += (thing.owner == target) - (thing.owner == source)
        del self._shares[source][index]
        self.loads[source] -= thing.weight
        if thing.apart >= 0:
            self._apart[thing.apart].discard(source)
        self._put(index, target)

    def _put(self, index: int, rank: int) -> None:
        thing = self._things[index]
        self.holders[index] = rank
        self._shares[rank][index] = None
        self.loads[rank] += thing.weight
        if thing.apart >= 0:
            self._apart.setdefault(thing.apart, set()).add(rank)

    def _may_hold(self, thing: Thing, rank: int) -> bool:
        return thing.apart < 0 or rank not in self._apart.get(thing.apart, ())

    def _level(self, rank: int) -> float:
        return self.loads[rank] / self._capacities[rank]

    def _level_with(self, rank: int, thing: Thing) -> float:
        return (self.loads[rank] + thing.weight) / self._capacities[rank]


def shares_of(holders: Sequence[int], members: int) -> list[list[int]]:
    """By rank the indexes of its things, ascending."""
    shares: list[list[int]] = [[] for _ in range(members)]
    for index, holder in enumerate(holders):
        if holder != NOBODY:
            shares[holder].append(index)
    return shares


# --- weighted -------------------------------------------------------------------------------------

# `weighted`: partitions weigh what the topic says, members carry what they can, and moves may have a budget.


def weighted(group: GroupSubscription, *, max_moves: int | None = None) -> Shares:
    """Level the members' loads over their capacities, keeping owned partitions where that is level enough.

    The default weight of a partition is 1. `max_moves` is the churn budget: how many partitions may be taken
    from an owner that is still there and subscribed, so that a group comes to balance in several small rebalances.
    Partitions without an owner are always assigned. Cooperative clients need no second round for them.
    """
    ordered, numbering = Numbering.of(group)
    of_topics, candidates = candidates_of_topics(numbering, ordered)
    owners = read_claims(numbering, ordered).owners
    weights = _weights(numbering, group.partition_weights)
    things = [
        Thing(of_topics[topic], weights[number], owners[number])
        for topic, numbers in numbering.numbers.items()
        for number in numbers
    ]
    holders = place(things, candidates, [member.capacity for member in ordered], max_moves)
    return numbering.named(ordered, shares_of(holders, len(ordered)))


def _weights(numbering: Numbering, given: PartitionWeights) -> list[float]:
    """By number. Where fewer are given than there are partitions (the topic grew), the others weigh 1."""
    weights: list[float] = []
    for topic, numbers in numbering.numbers.items():
        known = [float(weight) for weight in given.get(topic, ())][: len(numbers)]
        weights += known + [1.0] * (len(numbers) - len(known))
    if any(not 0 <= weight < float("inf") for weight in weights):
        raise ValueError("a partition's weight must be 0 or more")
    return weights


# --- copartitioned --------------------------------------------------------------------------------

# `copartitioned`: partition n of all topics goes to one member, so that joins between topics stay in one process.


def copartitioned(group: GroupSubscription) -> Shares:
    """Partitions of the same number, of all topics with the same subscribers, are one thing and never part.

    Unlike `range` it balances the bundles (a number that only some topics have weighs less), and it is sticky: a
    bundle stays with the member that owns most of it.
    """
    ordered, numbering = Numbering.of(group)
    of_topics, candidates = candidates_of_topics(numbering, ordered)
    owners = read_claims(numbering, ordered).owners
    # By their subscribers (an index), and the number within the topic.
    bundles: dict[tuple[int, int], list[int]] = {}
    for topic, numbers in numbering.numbers.items():
        for partition, number in enumerate(numbers):
            bundles.setdefault((of_topics[topic], partition), []).append(number)
    things = []
    for (index, _), run in bundles.items():
        counts = Counter(owners[number] for number in run if owners[number] != NOBODY)
        main_owner = min(counts, key=lambda rank: (-counts[rank], rank), default=NOBODY)
        things.append(Thing(index, len(run), main_owner))
    shares = shares_of(place(things, candidates, [1.0] * len(ordered)), len(ordered))
    runs = list(bundles.values())
    return numbering.named(ordered, [[number for index in share for number in runs[index]] for share in shares])


# --- rack-aware -----------------------------------------------------------------------------------

# `rack-aware`: a partition goes to a member in one of its racks if there is any, whatever that costs in balance.


def rack_aware(group: GroupSubscription) -> Shares:
    """Locality first, then balance, then stickiness. `range` and the sticky strategies put the balance first.

    Partitions that have no rack, or none with a subscriber in it, may go to any subscriber.
    """
    ordered, numbering = Numbering.of(group)
    owners = read_claims(numbering, ordered).owners
    of_topics, subscribers = candidates_of_topics(numbering, ordered)
    near: dict[tuple[int, ...], int] = {}
    chosen: dict[tuple[int, frozenset[str]], int] = {}
    things: list[Thing] = []
    for topic, numbers in numbering.numbers.items():
        index = of_topics[topic]
        for number, racks in zip(numbers, racks_of_topic(topic, len(numbers), group.partition_racks), strict=True):
            if (index, racks) not in chosen:
                within = tuple(rank for rank in subscribers[index] if ordered[rank].rack in racks)
                chosen[index, racks] = near.setdefault(within or subscribers[index], len(near))
            things.append(Thing(chosen[index, racks], owner=owners[number]))
    holders = place(things, list(near), [1.0] * len(ordered))
    return numbering.named(ordered, shares_of(holders, len(ordered)))


# --- roles of copies ------------------------------------------------------------------------------

# The roles of copies: of the members that have a partition, one is active, and the others are standbys.


def active_copies(
    members: Sequence[MemberSubscription],
    shares: Mapping[str, Collection[TopicPartition]],
    *,
    withholds: bool = False,
) -> Shares:
    """The active copies of each member, out of its share.

    The active copy stays active for as long as its member has it. After that a standby is promoted, before a member
    that is new to the partition: the one with the fewest active copies. `withholds`: members work on while they join,
    so that no copy is active until the former active member has revoked its own and has joined again.
    """
    held = {member.member_id: frozenset(member.owned_partitions) for member in members}
    former: dict[TopicPartition, str] = {}
    for member in sorted(members, key=lambda member: (member.claim_generation, member.member_id)):
        for place in held[member.member_id].intersection(member.active_partitions):
            former[place] = member.member_id
    holders: dict[TopicPartition, list[str]] = {}
    for member_id in sorted(shares):
        for place in shares[member_id]:
            holders.setdefault(place, []).append(member_id)
    active: Shares = {member_id: [] for member_id in shares}
    vacant = []
    for place in sorted(holders):
        if former.get(place) in holders[place]:
            active[former[place]].append(place)
        elif not (withholds and place in former):
            vacant.append(place)
    for place in vacant:
        heirs = [(place not in held[each], len(active[each]), each) for each in holders[place]]
        active[min(heirs)[-1]].append(place)
    return active


# --- redundant ------------------------------------------------------------------------------------

# `redundant`: each partition on several members at once, for hot standbys and reads that must not wait.


def redundant(group: GroupSubscription, *, n: int = 2) -> Shares:
    """Each partition on `n` different subscribers, on all of them where there are fewer. Balanced and sticky."""
    copies = _Copies(group, n)
    return copies.numbering.named(copies.members, copies.target)


def cooperative_redundant(group: GroupSubscription, *, n: int = 2) -> Shares:
    """`redundant`, reached in steps that leave each partition at least one of its holders, and never more than `n`.

    A holder that is not to keep its copy sees it missing, revokes it and rejoins, unless no other holder stays: then it
    keeps the copy until another member has one. A new holder gets its copy once less than `n` members hold the
    partition. A group whose copies wait for members that revoke nothing is at rest only by its count of copies: its
    leader has to assign once more.
    """
    copies = _Copies(group, n)
    shares: list[list[int]] = [[] for _ in copies.members]
    wanted = copies.ranks_by_number()
    for number, holders in enumerate(copies.former):
        staying = [rank for rank in holders if rank in wanted[number]]
        if not staying:
            staying = [rank for rank in holders if copies.is_subscribed(rank, number)][:1]
        joining = sorted(wanted[number].difference(holders))[: max(0, n - len(holders))]
        for rank in staying + joining:
            shares[rank].append(number)
    return copies.numbering.named(copies.members, shares)


class _Copies:
    """The copies of each partition: their present holders, and those of a balanced assignment. By rank and number."""

    def __init__(self, group: GroupSubscription, n: int) -> None:
        if n < 1:
            raise ValueError("a partition needs at least one member: n must be 1 or more")
        self.members, self.numbering = Numbering.of(group)
        of_topics, candidates = candidates_of_topics(self.numbering, self.members)
        self.former = _former_holders(self.numbering, self.members)
        self._subscribed: list[frozenset[int]] = [frozenset()] * self.numbering.total
        things: list[Thing] = []
        numbers_of_things: list[int] = []
        for topic, numbers in self.numbering.numbers.items():
            index = of_topics[topic]
            subscribed = frozenset(candidates[index])
            copies = min(n, len(subscribed))
            for number in numbers:
                self._subscribed[number] = subscribed
                owners = [rank for rank in self.former[number] if rank in subscribed][:copies]
                owners += [NOBODY] * (copies - len(owners))
                things += [Thing(index, owner=owner, apart=number) for owner in owners]
                numbers_of_things += [number] * copies
        placed = shares_of(place(things, candidates, [1.0] * len(self.members)), len(self.members))
        self.target = [[numbers_of_things[index] for index in share] for share in placed]

    def is_subscribed(self, rank: int, number: int) -> bool:
        return rank in self._subscribed[number]

    def ranks_by_number(self) -> list[set[int]]:
        """The holders of each partition in the balanced assignment."""
        ranks: list[set[int]] = [set() for _ in range(self.numbering.total)]
        for rank, numbers in enumerate(self.target):
            for number in numbers:
                ranks[number].add(rank)
        return ranks


def _former_holders(numbering: Numbering, members: Sequence[MemberSubscription]) -> list[list[int]]:
    """All claimants of a partition, those of the latest generation first."""
    former: list[list[int]] = [[] for _ in range(numbering.total)]
    for rank in sorted(range(len(members)), key=lambda rank: (-members[rank].claim_generation, rank)):
        for topic, partition in dict.fromkeys(members[rank].owned_partitions):
            run = numbering.numbers.get(topic, range(0))
            if 0 <= partition < len(run):
                former[run[partition]].append(rank)
    return former
