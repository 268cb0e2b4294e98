"""Connectors and tasks, handed out incrementally (KIP-415): nobody stops what it keeps, and who is away is waited for.

A departed worker's work is held back for a while, because most come back: a rolling restart then moves nothing. What
has to move is revoked first and given out in the next round, when nobody says any more that it runs it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

CONNECTOR = -1
"""The task number of a connector itself."""


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
    """What one worker is told: run this, stop that, and join again within `delay_ms` (0: no need to).

    Who is told to stop something joins again as soon as it has: only then somebody else is given it.
    """

    run: tuple[WorkItem, ...] = ()
    revoke: tuple[WorkItem, ...] = ()
    delay_ms: int = 0


@dataclass(frozen=True, slots=True)
class HeldBack:
    """The work of somebody who is away, and how long it is kept for it."""

    work: frozenset[WorkItem]
    until_ms: int


@dataclass(frozen=True, slots=True)
class Memory:
    """What a leader remembers from one round to the next. A new leader has none, so it holds nothing back."""

    given: Mapping[str, frozenset[WorkItem]] = field(default_factory=dict)
    """By identity what was given last."""
    away: Mapping[str, HeldBack] = field(default_factory=dict)
    """By identity what waits for its return."""


def assign_work(
    configured: Collection[WorkItem],
    workers: Sequence[Worker],
    memory: Memory,
    *,
    now_ms: int,
    scheduled_rebalance_max_delay_ms: int,
) -> tuple[dict[str, WorkShare], Memory]:
    """Everybody's share by member id, and what to remember for the next round. Needs at least one worker."""
    hands = _Hands(frozenset(configured), workers)
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
    """What waits for somebody: as long as it is not over, is still configured, and nobody runs it after all."""
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
    """What was kept for this worker, or what it was given before a restart that nobody noticed."""
    if worker.identity in memory.away:
        return memory.away[worker.identity].work
    return memory.given.get(worker.identity, frozenset())


class _Hands:
    """Who runs what while a round is decided. `free` is what is configured and nobody says it runs."""

    def __init__(self, configured: frozenset[WorkItem], workers: Sequence[Worker]) -> None:
        self.workers = sorted(workers, key=lambda worker: worker.member_id)
        self._running = {worker.member_id: frozenset(worker.running) for worker in self.workers}
        claims = Counter(work for worker in self.workers for work in set(worker.running))
        self.free = configured - claims.keys()
        # What two say they run is stopped by both: which of them is the zombie is not for us to guess.
        self._run = {
            worker.member_id: {work for work in worker.running if work in configured and claims[work] == 1}
            for worker in self.workers
        }

    def give(self, worker: Worker, work: Collection[WorkItem]) -> None:
        self._run[worker.member_id] |= set(work)
        self.free -= frozenset(work)

    def give_out(self) -> None:
        """What is free goes to whoever has the least of its kind."""
        for work in sorted(self.free):
            self.give(min(self.workers, key=lambda worker: (self._load(worker, work), worker.member_id)), [work])

    def revoke_surplus(self) -> None:
        """Take from workers that have at least two more of a kind than another one; that one gets it next round.

        Work that was given only in this round runs nowhere yet, so that it changes hands at once. Such work is taken
        first: it moves without a pause.
        """
        for connectors in (True, False):
            loads = {worker.member_id: self._of_kind(worker, connectors) for worker in self.workers}
            counts = {member_id: len(work) for member_id, work in loads.items()}
            while counts:
                most = max(counts, key=lambda member_id: (counts[member_id], member_id))
                least = min(counts, key=lambda member_id: (counts[member_id], member_id))
                if counts[most] <= counts[least] + 1:
                    break
                taken = self._next_to_take(most, loads[most])
                loads[most].remove(taken)
                self._run[most].discard(taken)
                counts[most] -= 1
                counts[least] += 1
                if taken not in self._running[most]:
                    self._run[least].add(taken)
                    loads[least].append(taken)

    def _next_to_take(self, member_id: str, load: Sequence[WorkItem]) -> WorkItem:
        given_now = [work for work in load if work not in self._running[member_id]]
        return (given_now or load)[-1]

    def share(self, worker: Worker, delay_ms: int) -> WorkShare:
        run = self._run[worker.member_id]
        return WorkShare(tuple(sorted(run)), tuple(sorted(set(worker.running) - run)), delay_ms)

    def _load(self, worker: Worker, like: WorkItem) -> int:
        return len(self._of_kind(worker, like.task == CONNECTOR))

    def _of_kind(self, worker: Worker, connectors: bool) -> list[WorkItem]:
        return sorted(work for work in self._run[worker.member_id] if (work.task == CONNECTOR) == connectors)
