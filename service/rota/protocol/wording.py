"""Durations, numbers and lists of names in words."""

from __future__ import annotations

from collections.abc import Sequence

NAMED = 3
"""So many names of a long list."""


def duration(ms: int) -> str:
    """A duration in its two largest units: `250 ms`, `4.2 s`, `3 min 20 s`, `2 h 5 min`, `4 d 3 h`."""
    if ms < 1_000:
        return f"{max(ms, 0)} ms"
    seconds = ms / 1_000
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, smaller, small in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit} {rest} {small}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"


def count(number: int, noun: str) -> str:
    """`1 member`, `3 members`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def listed(names: Sequence[str], number: int | None = None) -> str:
    """`a`, `a and b`, `a, b, c and 4 others`. If there are more than `names`, `number` counts all of them."""
    number = len(names) if number is None else number
    if number > NAMED + 1:
        return f"{', '.join(names[:NAMED])} and {number - NAMED} others"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1]))) if names else "no member"
