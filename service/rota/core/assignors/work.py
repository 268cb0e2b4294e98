"""Connectors and tasks, assigned incrementally (KIP-415): kept work is not stopped, and absent workers are waited for.

A departed worker's work is held back for a while, because most return: a rolling restart then moves nothing. Work that
must move is revoked first and assigned in the next round, when no worker runs it any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

CONNECTOR = -1
"""The task number of a connector itself."""
_ROUNDING = 1e-9
"""Sums of weights may differ by so little for nothing but rounding."""


class WorkItem(NamedTuple):
    """A connector (`task` is -1) or one of its tasks."""

    connector: str
    task: int = CONNECTOR


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker that has joined. `identity` survives its restarts: its instance id, or the URL it is reached at."""

    member_id: str
    identity: str
    running: Collection[WorkItem] = ()


@dataclass(frozen=True, slots=True)
class WorkShare:
    """The instructions for one worker: run this, stop that, and join again within `delay_ms` (0: no need to).

    A worker that must stop something joins again as soon as it has: only then another worker gets it.
    """

    run: tuple[WorkItem, ...] = ()
    revoke: tuple[WorkItem, ...] = ()
    delay_ms: int = 0


@dataclass(frozen=True, slots=True)
class HeldBack:
    """The work of an absent worker, and how long it is kept for it."""

    work: frozenset[WorkItem]
    until_ms: int


@dataclass(frozen=True, slots=True)
class Memory:
    """What a leader remembers from one round to the next. A new leader has none, so it holds nothing back."""

    given: Mapping[str, frozenset[WorkItem]] = field(default_factory=dict)
    """The last assignment by identity."""
    away: Mapping[str, HeldBack] = field(default_factory=dict)
    """By identity what waits for its return."""


def assign_work(
    configured: Collection[WorkItem],
    workers: Sequence[Worker],
    memory: Memory,
    *,
    now_ms: int,
    scheduled_rebalance_max_delay_ms: int,
    weights: Mapping[WorkItem, float] | None = None,
) -> tuple[dict[str, WorkShare], Memory]:
    """The shares by member id, and what to remember for the next round. Needs at least one worker.

    `weights` say how heavy items are, 1 each where they say nothing: workers get the same weight of connectors, and
    the same of tasks, as far as that can be.
    """
    hands = _Hands(frozenset(configured), workers, weights or {})
    away = _away(hands, memory, now_ms, scheduled_rebalance_max_delay_ms)
    for worker in hands.workers:
        hands.give(worker, _returned(worker, memory) & hands.free)
    hands.free -= frozenset[WorkItem]().union(*(held.work for held in away.values()))
    hands.give_out()
    if not away:
        hands.revoke_surplus()
    delay_ms = max(1, min(held.until_ms for held in away.values()) - now_ms) if away else 0
    shares = {worker.member_id: hands.share(worker, delay_ms) for worker in hands.workers}
    given = {worker.identity: frozenset(shares[worker.member_id].run) for worker in hands.workers}
    return shares, Memory(given, away)


def _away(hands: _Hands, memory: Memory, now_ms: int, max_delay_ms: int) -> dict[str, HeldBack]:
    """The held back work: as long as its time is not over, it is still configured, and no worker runs it."""
    away = dict(memory.away)
    for identity, work in memory.given.items():
        away.setdefault(identity, HeldBack(work, now_ms + max_delay_ms))
    present = {worker.identity for worker in hands.workers}
    return {
        identity: HeldBack(held.work & hands.free, held.until_ms)
        for identity, held in away.items()
        if identity not in present and held.until_ms > now_ms and held.work & hands.free
    }


def _returned(worker: Worker, memory: Memory) -> frozenset[WorkItem]:
    """The work kept for this worker, or its last assignment before a restart that went unnoticed."""
    if worker.identity in memory.away:
        return memory.away[worker.identity].work
    return memory.given.get(worker.identity, frozenset())


class _Hands:
    """The running work while a round is decided. `free` is configured work that no worker runs."""

    def __init__(
        self, configured: frozenset[WorkItem], workers: Sequence[Worker], weights: Mapping[WorkItem, float]
    ) -> None:
        self._weights = weights
        self.workers = sorted(workers, key=lambda worker: worker.member_id)
        self._running = {worker.member_id: frozenset(worker.running) for worker in self.workers}
        claims = Counter(work for worker in self.workers for work in set(worker.running))
        self.free = configured - claims.keys()
        # Work that two workers claim is stopped by both: it is not known which of them is the zombie.
        self._run = {
            worker.member_id: {work for work in worker.running if work in configured and claims[work] == 1}
            for worker in self.workers
        }

    def give(self, worker: Worker, work: Collection[WorkItem]) -> None:
        self._run[worker.member_id] |= set(work)
        self.free -= frozenset(work)

    def give_out(self) -> None:
        """Give free work to the worker with the least of its kind, the heaviest first."""
        loads = {
            connectors: {worker.member_id: self._weigh(self._of_kind(worker, connectors)) for worker in self.workers}
            for connectors in (True, False)
        }
        for work in sorted(self.free, key=lambda work: (-self._weight(work), work)):
            of_kind = loads[work.task == CONNECTOR]
            least = min(self.workers, key=lambda worker: (of_kind[worker.member_id], worker.member_id))
            of_kind[least.member_id] += self._weight(work)
            self.give(least, [work])

    def revoke_surplus(self) -> None:
        """Take from workers that have so much more of a kind than another one that an item would even it out; that one
        gets it next round.

        Work that was given only in this round runs nowhere yet, so that it changes hands at once. Such work is taken
        first: it moves without a pause.
        """
        for connectors in (True, False):
            held = {worker.member_id: self._of_kind(worker, connectors) for worker in self.workers}
            loads = {member_id: self._weigh(work) for member_id, work in held.items()}
            while (move := self._next_move(held, loads)) is not None:
                taken, most, least = move
                held[most].remove(taken)
                self._run[most].discard(taken)
                loads[most] -= self._weight(taken)
                loads[least] += self._weight(taken)
                if taken not in self._running[most]:
                    self._run[least].add(taken)
                    held[least].append(taken)

    def _next_move(
        self, held: Mapping[str, Sequence[WorkItem]], loads: Mapping[str, float]
    ) -> tuple[WorkItem, str, str] | None:
        """An item of the worker with the most that makes it and the one with the least more alike; of the next one,
        where that has none so light.
        """
        least = min(loads, key=lambda member_id: (loads[member_id], member_id), default="")
        for most in sorted(loads, key=lambda member_id: (loads[member_id], member_id), reverse=True):
            surplus = loads[most] - loads[least]
            if surplus <= 0:
                return None
            lighter = [work for work in held[most] if 0 < self._weight(work) < surplus - _ROUNDING]
            if lighter:
                return self._next_to_take(most, lighter, surplus / 2), most, least
        return None

    def _next_to_take(self, member_id: str, work: Sequence[WorkItem], wanted: float) -> WorkItem:
        """The item next to the wanted weight, of those that were given only now if there are any."""
        given_now = [each for each in work if each not in self._running[member_id]]
        among = given_now or work
        return min(reversed(among), key=lambda each: abs(self._weight(each) - wanted))

    def _weight(self, work: WorkItem) -> float:
        return self._weights.get(work, 1.0)

    def _weigh(self, work: Collection[WorkItem]) -> float:
        return sum(map(self._weight, work))

    def share(self, worker: Worker, delay_ms: int) -> WorkShare:
        run = self._run[worker.member_id]
        return WorkShare(tuple(sorted(run)), tuple(sorted(set(worker.running) - run)), delay_ms)

    def _of_kind(self, worker: Worker, connectors: bool) -> list[WorkItem]:
        return sorted(work for work in self._run[worker.member_id] if (work.task == CONNECTOR) == connectors)
