"""The sticky assignment where members subscribe to different topics: keep, fill up, then move.

Topics with few subscribers come first, for they have the least choice. A free partition goes to its least loaded
subscriber. After that a partition moves only to a subscriber that has at least two fewer than its holder, so each move
lowers the sum of the squared loads and the passes come to an end; when one changes nothing, no single move would help.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rota.core.assignors.claims import Claims
from rota.core.assignors.least_loaded import LeastLoaded
from rota.core.assignors.model import UNKNOWN_GENERATION, MemberSubscription
from rota.core.assignors.moves import Moves
from rota.core.assignors.numbering import NOBODY, Numbering
from rota.core.assignors.racks import Racks
from rota.core.assignors.subscribers import subscribers_of_topics
from rota.core.assignors.tie_order import tie_order


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
