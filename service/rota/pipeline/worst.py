"""The partitions that a rebalance stalled, from the commits around it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

AROUND_MS = 120_000
"""Commits of so long before and after a rebalance show how often its partitions are committed otherwise."""
_TIMES = 2.0
"""A pause is the rebalance's if it is so many times as long as usual."""

Commits = Mapping[tuple[str, int], Sequence[int]]
"""The moments of the commits of each partition, by topic and number, in their order."""


@dataclass(frozen=True, slots=True)
class Stalls:
    """The partitions that stood still in one rebalance."""

    partitions: int
    known: int
    """Of so many partitions there are commits before it."""
    longest_ms: int = 0
    longest: str = ""
    goes_on: bool = False
    """Whether the longest pause was not over when the lines ended."""


def stalls(commits: Commits, began_ms: int, ended_ms: int, last_ms: int) -> Stalls | None:
    """The stalls of a rebalance; None where no commit before it is known. `last_ms`: the end of the lines."""
    known = {partition: moments for partition, moments in commits.items() if moments and moments[0] <= began_ms}
    if not known:
        return None
    found = []
    for (topic, number), moments in known.items():
        pause = _pause(moments, began_ms, ended_ms, last_ms)
        if pause is not None:
            found.append((*pause, f"{topic}/{number}"))
    if not found:
        return Stalls(0, len(known))
    longest_ms, goes_on, name = max(found, key=lambda one: (one[0], one[2]))
    return Stalls(len(found), len(known), longest_ms, name, goes_on)


def _pause(moments: Sequence[int], began_ms: int, ended_ms: int, last_ms: int) -> tuple[int, bool] | None:
    """The longest time between two commits that overlaps the rebalance, if it is longer than usual."""
    goes_on = moments[-1] < ended_ms
    times = list(pairwise([*moments, last_ms] if goes_on else moments))
    within = [(after - before, after) for before, after in times if before < ended_ms and after > began_ms]
    usual = [after - before for before, after in times if after <= began_ms or before >= ended_ms]
    if not within:
        return None
    pause_ms, until_ms = max(within)
    if usual and pause_ms <= _TIMES * max(sorted(usual)[len(usual) // 2], 1):
        return None
    return pause_ms, goes_on and until_ms == last_ms


def in_order(found: Iterable[tuple[str, int, int]]) -> Commits:
    """Commits as `stalls` wants them, of topics, partition numbers and moments."""
    commits: dict[tuple[str, int], list[int]] = {}
    for topic, partition, at_ms in sorted(found):
        commits.setdefault((topic, partition), []).append(at_ms)
    return commits
