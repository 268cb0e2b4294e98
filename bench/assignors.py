"""The sticky strategies with a million partitions and two thousand members: CPU of one core, and memory at its peak.

Kafka's own assignors did the same on the JVM, with both cores of such a machine, in the seconds that are the aims: for
its `sticky` both rounds together, for the cooperative one each round.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from bench.figures import Effort, Figure, sample, transposed
from rota.core.assignors import MemberSubscription, Shares, TopicPartition, assign
from rota.core.assignors.model import topic_partitions

TOPICS = 500
PARTITIONS_OF_A_TOPIC = 2_000
MEMBERS = 2_000
KAFKA = {
    ("sticky", "alike"): (None, None, 1.0),
    ("sticky", "one otherwise"): (None, None, 7.5),
    ("cooperative-sticky", "alike"): (0.8, 3.7, None),
    ("cooperative-sticky", "one otherwise"): (17.3, 10.5, None),
}
"""Seconds of a fresh group, of one that lost a member, and of both, by strategy and subscriptions."""

CROWD = 10_000
ITEMS = 100_000

Result = TypeVar("Result")


def run(effort: Effort) -> list[Figure]:
    """Both strategies with all members subscribed to all and with one to the first topic only; then many members."""
    partitions = effort.times(PARTITIONS_OF_A_TOPIC)
    counts = {f"t{index:03}": partitions for index in range(TOPICS)}
    figures: list[Figure] = []
    for strategy, subscriptions in KAFKA:
        figures += _rounds(effort, strategy, subscriptions, counts)
    return [*figures, *_crowd(effort)]


def _members(subscriptions: str, counts: Mapping[str, int]) -> list[MemberSubscription]:
    members = [MemberSubscription(f"m{index:04}", topics=tuple(counts)) for index in range(MEMBERS)]
    if subscriptions == "one otherwise":
        members[-1] = replace(members[-1], topics=(next(iter(counts)),))
    return members


def _rounds(effort: Effort, strategy: str, subscriptions: str, counts: Mapping[str, int]) -> list[Figure]:
    """A group that was never assigned, then the same without its first member."""
    members = _members(subscriptions, counts)

    def both() -> tuple[float, ...]:
        (shares, fresh), floor = _timed(lambda: assign(strategy, counts, members)), _naming(counts)
        _, lost = _timed(lambda: assign(strategy, counts, _survivors(members, shares)))
        return fresh, lost, fresh + lost, floor

    fresh, lost, in_all, floor = transposed([both() for _ in range(effort.repeats)])
    aims = KAFKA[strategy, subscriptions]
    name = f"{strategy}, {sum(counts.values()):,} × {MEMBERS:,}, subscribed {subscriptions}"
    return [
        Figure("assignors", f"{name}: fresh", "s", fresh, "naming the partitions", floor, aims[0]),
        Figure("assignors", f"{name}: a member lost", "s", lost, aim=aims[1]),
        Figure("assignors", f"{name}: both", "s", in_all, aim=aims[2]),
        *_memory(name, strategy, members, counts),
    ]


def _survivors(members: list[MemberSubscription], shares: Shares) -> list[MemberSubscription]:
    return [replace(each, owned_partitions=shares[each.member_id], generation=1) for each in members[1:]]


def _naming(counts: Mapping[str, int]) -> float:
    """The minimum of any implementation: a name for each partition."""
    return _timed(lambda: [topic_partitions(topic, count) for topic, count in counts.items()])[1]


def _memory(
    name: str, strategy: str, members: list[MemberSubscription], counts: Mapping[str, int]
) -> tuple[Figure, Figure]:
    """What is allocated at the peak of each round, the result included, what the members said before not. Once."""
    shares, fresh = _peak(lambda: assign(strategy, counts, members))
    survivors = _survivors(members, shares)
    _, lost = _peak(lambda: assign(strategy, counts, survivors))
    return (
        Figure("assignors", f"{name}: peak memory, fresh", "MB", (fresh,)),
        Figure("assignors", f"{name}: peak memory, a member lost", "MB", (lost,)),
    )


def _crowd(effort: Effort) -> list[Figure]:
    """A member of many goes: by all members' claims."""
    items = topic_partitions("t", effort.times(ITEMS))
    names = [f"m{index:05}" for index in range(CROWD)]
    shares: dict[str, list[TopicPartition]] = {name: items[seat::CROWD] for seat, name in enumerate(names)}
    size = f"{CROWD:,} members, {len(items):,} items"
    claims = [MemberSubscription(name, None, ("t",), shares[name], 1) for name in names[1:]]
    from_claims = _milliseconds(effort, lambda: assign("sticky", {"t": len(items)}, claims))
    return [Figure("assignors", f"sticky from all claims, {size}: a member lost", "ms", from_claims)]


def _milliseconds(effort: Effort, change: Callable[[], object]) -> tuple[float, ...]:
    return sample(effort, lambda: _timed(change)[1] * 1_000)


def _timed(do: Callable[[], Result]) -> tuple[Result, float]:
    gc.collect()
    started = time.thread_time()
    result = do()
    return result, time.thread_time() - started


def _peak(do: Callable[[], Result]) -> tuple[Result, float]:
    gc.collect()
    tracemalloc.start()
    result = do()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return result, peak / 1e6
