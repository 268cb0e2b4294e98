"""`sticky` (KIP-54) and `cooperative-sticky` (KIP-429): balanced, and as close to the last assignment as that allows.

The KIP's two alternatives are options: fair only (the previous assignment counts for nothing), and sticky first (owned
partitions never move, only those without an owner are distributed fairly).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import compress

from rota.core.assignors.model import UNKNOWN_GENERATION, GroupSubscription, MemberSubscription, Shares
from rota.core.assignors.numbering import NOBODY, Claims, Numbering, Racks, read_claims, subscribers_of_topics

# --- ties -----------------------------------------------------------------------------------------

# The order in which Kafka's sticky assignors come upon the members, which decides between equally entitled ones.
#
# There it is the order of a Java hash map. Any order would do; with this one the results are the same as Kafka's, so
# that the two can be compared case by case.


def tie_order(member_ids: Sequence[str]) -> list[int]:
    """The positions of `member_ids` in the order that a Java hash map with these keys would have."""
    capacity = 16
    while len(member_ids) > capacity * 3 // 4:
        capacity *= 2
    buckets = [_spread(_java_hash(member_id)) % capacity for member_id in member_ids]
    return sorted(range(len(member_ids)), key=lambda position: (buckets[position], member_ids[position]))


# The same members are hashed in every rebalance; more of them than that are a matter of milliseconds.
@lru_cache(maxsize=4096)
def _java_hash(text: str) -> int:
    """`String.hashCode()` as an unsigned number: over UTF-16 units."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFF_FFFF
    return value


def _spread(value: int) -> int:
    """What a hash map makes of a hash before it picks a bucket."""
    return value ^ value >> 16


# --- members with the same topics -----------------------------------------------------------------

# The sticky assignment where all members subscribe to the same topics: quotas are known in advance, one pass does it.
#
# Every member gets the floor or the ceiling of the average. Members keep their partitions up to their quota; free ones
# are then assigned round-robin to members below theirs, within their racks first if these are known.


def assign_evenly(
    numbering: Numbering, member_ids: Sequence[str], claims: Claims, racks: Racks | None = None
) -> list[list[int]]:
    """The partition numbers of each member, by rank. `member_ids` are in alphabetical order."""
    distribution = _Distribution(numbering, member_ids)
    distribution.keep_owned(claims)
    free = distribution.free()
    distribution.seat_unfilled()
    if racks is not None:
        free = distribution.give_within_racks(sorted(free, key=racks.members_near), racks)
    distribution.give_round_robin(free)
    return distribution.shares


class _Distribution:
    """The shares while they fill up.

    `below` are the members under the floor; `at_floor` those that may still get one more, in the order in which they
    do; `extras` is how many members are yet to have the ceiling.
    """

    def __init__(self, numbering: Numbering, member_ids: Sequence[str]) -> None:
        self._numbering = numbering
        self._member_ids = member_ids
        self.shares: list[list[int]] = [[] for _ in member_ids]
        self.floor, self.extras = divmod(numbering.total, len(member_ids))
        self.below: list[int] = []
        self.at_floor: list[int] = []

    def keep_owned(self, claims: Claims) -> None:
        """Let each member keep its partitions, up to its quota: the ceiling while there are extras, then the floor."""
        self.shares = claims.by_owner(len(self._member_ids))
        floor = self.floor
        above = [rank for rank, share in enumerate(self.shares) if len(share) > floor]
        if 0 < self.extras < len(above):
            # Only some of them may have the ceiling.
            entitled = set(above)
            above = [rank for rank in tie_order(self._member_ids) if rank in entitled]
        within_topic: Sequence[int] = ()
        for rank in above:
            quota = floor + (self.extras > 0)
            self.extras -= quota - floor
            share = self.shares[rank]
            if len(share) > quota:
                # The lowest numbers within their topics stay, so that a member keeps some of each topic.
                within_topic = within_topic or self._numbering.partition_numbers()
                share.sort(key=within_topic.__getitem__)
                del share[quota:]

    def free(self) -> list[int]:
        """The partitions without an owner, ascending."""
        if not any(self.shares):
            return list(range(self._numbering.total))
        is_free = bytearray(b"\x01") * self._numbering.total
        for share in self.shares:
            for number in share:
                is_free[number] = 0
        return list(compress(range(self._numbering.total), is_free))

    def seat_unfilled(self) -> None:
        """Note which members are below the floor, and which are at it."""
        self.below = [rank for rank, share in enumerate(self.shares) if len(share) < self.floor]
        self.at_floor = [rank for rank, share in enumerate(self.shares) if len(share) == self.floor]

    def give_within_racks(self, free: Sequence[int], racks: Racks) -> list[int]:
        """Assign partitions that fit a member's rack and quota, members below the floor first; returns the others."""
        left: list[int] = []
        turn = 0
        for number in free:
            seat = _seat_near(number, self.below, turn, racks)
            if seat is not None:
                turn = self._give_below(number, seat)
                continue
            seat = _seat_near(number, self.at_floor, 0, racks) if self.extras else None
            if seat is None:
                left.append(number)
            else:
                self.shares[self.at_floor.pop(seat)].append(number)
                self.extras -= 1
        return left

    def _give_below(self, number: int, seat: int) -> int:
        """Assign to the member in that seat of `below`; returns the next seat."""
        rank = self.below[seat]
        self.shares[rank].append(number)
        if len(self.shares[rank]) < self.floor:
            seat += 1
        else:
            del self.below[seat]
            self.at_floor.append(rank)
        return seat % len(self.below) if self.below else 0

    def give_round_robin(self, free: Sequence[int]) -> None:
        """Assign the rest in rounds to the members below the floor, and then the extras."""
        start = 0
        while self.below:
            # As many rounds at once as all of them take part in: a member gets every so manieth.
            width = len(self.below)
            end = start + width * (self.floor - max([len(self.shares[rank]) for rank in self.below]))
            for seat, rank in enumerate(self.below):
                self.shares[rank] += free[start + seat : end : width]
            start = end
            self.at_floor += [rank for rank in self.below if len(self.shares[rank]) == self.floor]
            self.below = [rank for rank in self.below if len(self.shares[rank]) < self.floor]
        for rank, number in zip(self.at_floor[: self.extras], free[start:], strict=True):
            self.shares[rank].append(number)


def _seat_near(number: int, ranks: Sequence[int], turn: int, racks: Racks) -> int | None:
    """The first seat, from `turn` on and around, with a member in a rack of the partition."""
    for step in range(len(ranks)):
        seat = (turn + step) % len(ranks)
        if racks.match(ranks[seat], number):
            return seat
    return None


# --- moves of one topic ---------------------------------------------------------------------------

# Moves of a topic's partitions that never send two partitions of it past each other.


class Moves:
    """The moves of one topic since balancing began: where each moved partition came from.

    If one partition went from A to B and another were to go from B to A, both would be interrupted for nothing. Such a
    move undoes the first one instead, which changes the loads in the same way.
    """

    def __init__(self, holders: list[int], loads: list[int]) -> None:
        self._holders = holders
        self._loads = loads
        self._homes: dict[int, int] = {}
        # By way (from, to) the partitions that went it, in the order they did (a dict serves as an ordered set).
        self._went: dict[tuple[int, int], dict[int, None]] = {}

    def move(self, number: int, target: int) -> None:
        """Take one partition from the holder of `number` and give one of this topic to `target`."""
        source = self._holders[number]
        home = self._homes.get(number, source)
        opposite = self._went.get((target, home))
        if opposite:
            # One that came from `target` to `home` returns, and `number` stays at or returns to its home.
            self._settle(next(iter(opposite)), target)
            self._settle(number, home)
        else:
            self._settle(number, target)
        self._loads[source] -= 1
        self._loads[target] += 1

    def _settle(self, number: int, rank: int) -> None:
        holder = self._holders[number]
        home = self._homes.pop(number, holder)
        if home != holder:
            del self._went[home, holder][number]
        if home != rank:
            self._homes[number] = home
            self._went.setdefault((home, rank), {})[number] = None
        self._holders[number] = rank


# --- the least loaded member ----------------------------------------------------------------------

# The least loaded of some members, while loads change.


class LeastLoaded:
    """Finds the member with the least load, of equals the first by rank.

    A heap of `load * width + rank`, in which entries with an outdated load are dropped when they surface.
    """

    def __init__(self, ranks: Sequence[int], loads: Sequence[int]) -> None:
        self._loads = loads
        self._width = len(loads)
        self._members = frozenset(ranks)
        self._heap = [loads[rank] * self._width + rank for rank in ranks]
        heapify(self._heap)

    def __contains__(self, rank: int) -> bool:
        return rank in self._members

    def first(self) -> int:
        """The least loaded member's rank."""
        while True:
            load, rank = divmod(self._heap[0], self._width)
            if self._loads[rank] == load:
                return rank
            heappop(self._heap)

    def changed(self, rank: int) -> None:
        """To be called after the load of a member changed."""
        heappush(self._heap, self._loads[rank] * self._width + rank)


# --- members with different topics ----------------------------------------------------------------

# The sticky assignment where members subscribe to different topics: keep, fill up, then move.
#
# Topics with few subscribers come first, because they have the least choice. A free partition goes to its least loaded
# subscriber. After that a partition moves only to a subscriber that has at least two fewer than its holder, so each
# move lowers the sum of the squared loads and the passes come to an end; when one changes nothing, no single move
# would help.


def assign_unevenly(
    numbering: Numbering,
    members: Sequence[MemberSubscription],
    claims: Claims,
    racks: Racks | None = None,
    *,
    move_owned: bool = True,
) -> list[list[int]]:
    """The partition numbers of each member, by rank. `members` are in the order of their ids.

    Without `move_owned` only partitions without an owner are assigned, and the rest stays as unbalanced as before.
    """
    subscribers = subscribers_of_topics(numbering, members)
    topics = sorted(numbering.numbers, key=lambda topic: (len(subscribers[topic]), topic))
    holders = _kept(numbering, subscribers, claims)
    homes = list(holders)
    loads = [0] * len(members)
    for holder in holders:
        if holder != NOBODY:
            loads[holder] += 1
    fresh = {topic: [number for number in numbering.numbers[topic] if holders[number] == NOBODY] for topic in topics}
    if racks is not None:
        for topic in topics:
            _distribute_within_racks(fresh[topic], subscribers[topic], holders, loads, racks)
    for topic in topics:
        _distribute(
            [number for number in fresh[topic] if holders[number] == NOBODY], subscribers[topic], holders, loads
        )
    balance = _Balance(subscribers, holders, loads, _second_choices(members, claims))
    # Partitions without an owner move for free, so they are tried before any is taken from its owner.
    balance.improve({topic: numbers for topic, numbers in fresh.items() if numbers})
    everything = {topic: numbering.numbers[topic] for topic in topics}
    if move_owned:
        balance.improve(everything)
        # A partition that returns home may leave another one room to improve, so the two alternate.
        while balance.return_home(everything, homes):
            balance.improve(everything)
    shares: list[list[int]] = [[] for _ in members]
    for number, holder in enumerate(holders):
        shares[holder].append(number)
    return shares


def _kept(numbering: Numbering, subscribers: Mapping[str, Sequence[int]], claims: Claims) -> list[int]:
    """The holder of each partition: its effective previous owner, if that still subscribes."""
    holders = list(claims.owners)
    for topic, numbers in numbering.numbers.items():
        allowed = {NOBODY, *subscribers[topic]}
        for number in numbers:
            if holders[number] not in allowed:
                holders[number] = NOBODY
    return holders


def _distribute_within_racks(
    free: Sequence[int], subscribers: Sequence[int], holders: list[int], loads: list[int], racks: Racks
) -> None:
    """Each partition to the least loaded subscriber in one of its racks (or without a rack), if there is one."""
    neighbours: dict[str | None, list[int]] = {}
    for rank in subscribers:
        neighbours.setdefault(racks.of_members[rank], []).append(rank)
    least = {rack: LeastLoaded(ranks, loads) for rack, ranks in neighbours.items()}
    for number in free:
        near = [first for rack, first in least.items() if rack is None or rack in racks.of_partitions[number]]
        if near:
            rank = min((first.first() for first in near), key=lambda rank: (loads[rank], rank))
            holders[number] = rank
            loads[rank] += 1
            least[racks.of_members[rank]].changed(rank)


def _distribute(free: Sequence[int], subscribers: Sequence[int], holders: list[int], loads: list[int]) -> None:
    """Each partition to the subscriber with the least load, of equals the first.

    Done level by level, like water that fills a vessel: all subscribers at the lowest level get one each, in order, and
    then are one level higher, with those that were there before.
    """
    waiting = sorted(subscribers, key=loads.__getitem__, reverse=True)
    lowest: list[int] = []
    given = 0
    while given < len(free):
        level = loads[lowest[0]] if lowest else loads[waiting[-1]]
        if waiting and loads[waiting[-1]] == level:
            while waiting and loads[waiting[-1]] == level:
                lowest.append(waiting.pop())
            lowest.sort()
        turn = free[given : given + len(lowest)]
        for number, rank in zip(turn, lowest, strict=False):
            holders[number] = rank
            loads[rank] += 1
        given += len(turn)


def _second_choices(members: Sequence[MemberSubscription], claims: Claims) -> dict[int, int]:
    """For contested partitions the best of the outdated claims: where it has to move, it may as well go back there."""
    newest = max((member.claim_generation for member in members), default=UNKNOWN_GENERATION)
    seats = {rank: seat for seat, rank in enumerate(tie_order([member.member_id for member in members]))}
    choices: dict[int, int] = {}
    for number, claimants in claims.contested.items():
        outdated = [rank for rank in claimants if members[rank].claim_generation < newest]
        if outdated:
            choices[number] = max(outdated, key=lambda rank: (members[rank].claim_generation, -seats[rank]))
    return choices


class _Balance:
    """Passes over partitions that move each to where it improves the balance, until nothing does."""

    def __init__(
        self,
        subscribers: Mapping[str, Sequence[int]],
        holders: list[int],
        loads: list[int],
        second_choices: Mapping[int, int],
    ) -> None:
        self._subscribers = subscribers
        self._holders = holders
        self._loads = loads
        self._second_choices = second_choices
        self._moves = {topic: Moves(holders, loads) for topic in subscribers}

    def improve(self, movable: Mapping[str, Sequence[int]]) -> None:
        """Move partitions of `movable` (by topic, in the order they are tried) until no move of one would help."""
        active = {topic: numbers for topic, numbers in movable.items() if len(self._subscribers[topic]) > 1}
        moved = True
        while moved:
            moved = False
            for topic, numbers in active.items():
                moved |= self._improve_topic(topic, numbers)

    def return_home(self, topics: Mapping[str, Sequence[int]], homes: Sequence[int]) -> bool:
        """Undo each move that the balance does not need (any more); whether there was one.

        A later move may have made an earlier one pointless. The sum of the squared loads does not rise by this and the
        number of moves falls, so taking turns with `improve` comes to an end.
        """
        holders, loads = self._holders, self._loads
        returned = False
        for topic, numbers in topics.items():
            away = [number for number in numbers if homes[number] not in (NOBODY, holders[number])]
            for number in away:
                if loads[holders[number]] > loads[homes[number]]:
                    self._moves[topic].move(number, homes[number])
                    returned = True
        return returned

    def _improve_topic(self, topic: str, numbers: Sequence[int]) -> bool:
        """One pass over a topic; whether anything moved."""
        loads, holders, subscribers = self._loads, self._holders, self._subscribers[topic]
        floor = min(map(loads.__getitem__, subscribers))
        if max(map(loads.__getitem__, map(holders.__getitem__, numbers))) <= floor + 1:
            return False
        least = LeastLoaded(subscribers, loads)
        moves = self._moves[topic]
        moved = False
        for number in numbers:
            holder = holders[number]
            # The lowest load of a topic never sinks during a pass: the giver keeps more than the lowest has.
            if loads[holder] <= floor + 1:
                continue
            target = least.first()
            floor = loads[target]
            if loads[holder] <= floor + 1:
                continue
            preferred = self._second_choices.get(number, target)
            if preferred != target and loads[holder] > loads[preferred] + 1 and preferred in least:
                target = preferred
            moves.move(number, target)
            least.changed(holder)
            least.changed(target)
            moved = True
        return moved


# --- the two strategies ---------------------------------------------------------------------------

# A cooperative group reaches the sticky assignment without stopping work on kept partitions.


class Prefer(StrEnum):
    """The goal that comes first if balance and stickiness contradict each other."""

    BALANCE = "balance"
    FAIRNESS_ONLY = "fairness-only"
    STICKINESS = "stickiness"


@dataclass(frozen=True, slots=True)
class StickyPlan:
    """The target of every partition, before any member revokes one. All lists are in the order of the member ids."""

    numbering: Numbering
    members: Sequence[MemberSubscription]
    claims: Claims
    shares: list[list[int]]

    def named(self, shares: Sequence[Sequence[int]]) -> Shares:
        """Numbers as topic partitions, by member id."""
        return self.numbering.named(self.members, shares, self.claims.names)


def plan(
    group: GroupSubscription,
    prefer: Prefer = Prefer.BALANCE,
) -> StickyPlan:
    """The assignment that both sticky strategies aim for."""
    ordered, numbering = Numbering.of(group)
    claims = read_claims(numbering, ordered)
    racks = Racks.of(numbering, ordered, group.partition_racks)
    if prefer is Prefer.STICKINESS:
        shares = assign_unevenly(numbering, ordered, claims, racks, move_owned=False)
    elif prefer is Prefer.FAIRNESS_ONLY:
        shares = _shares(numbering, ordered, Claims([NOBODY] * numbering.total, {}), racks)
    else:
        shares = _shares(numbering, ordered, claims, racks)
    if prefer is Prefer.BALANCE and racks is not None:
        # Partitions are taken from owners outside of their racks, if that ends with more of them in their racks. Kafka
        # takes them in every round, in the hope for better. A cooperative group could go round in circles by that, so
        # the assignment after the owners' revocation is computed first.
        kept = [
            NOBODY if owner != NOBODY and racks.mismatch(owner, number) else owner
            for number, owner in enumerate(claims.owners)
        ]
        moved = _shares(numbering, ordered, Claims(kept, claims.contested), racks)
        settled = _shares(numbering, ordered, claims.after(moved), racks)
        shares = moved if racks.mismatches(settled) < racks.mismatches(shares) else shares
    return StickyPlan(numbering, ordered, claims, shares)


def _shares(
    numbering: Numbering, members: Sequence[MemberSubscription], claims: Claims, racks: Racks | None
) -> list[list[int]]:
    if len({frozenset(member.topics) for member in members}) == 1:
        return assign_evenly(numbering, [member.member_id for member in members], claims, racks)
    return assign_unevenly(numbering, members, claims, racks)


def sticky(group: GroupSubscription, *, prefer: Prefer = Prefer.BALANCE) -> Shares:
    """Everything is assigned at once, so members must give up all they hold before they rejoin (eager)."""
    target = plan(group, prefer)
    return target.named(target.shares)


def cooperative_sticky(group: GroupSubscription, *, prefer: Prefer = Prefer.BALANCE) -> Shares:
    """A partition that moves is not assigned yet: its holder sees it missing, revokes it and rejoins.

    The second rebalance, in which no member claims the partition any more, assigns it.
    """
    target = plan(group, prefer)
    return target.named([target.claims.free_for(rank, share) for rank, share in enumerate(target.shares)])
