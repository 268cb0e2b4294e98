"""Classes of gaps between two signs of life: four to each doubling, so that sums of histograms stay histograms."""

from __future__ import annotations

from functools import lru_cache

CLASSES = 96
"""The last one begins at about nine hours."""


class GapCount:
    """The gaps of one member since `since_ms`: how many by class. `sessions.renew_sessions` counts them."""

    __slots__ = ("classes", "longest_ms", "since_ms")

    def __init__(self, since_ms: int) -> None:
        self.since_ms = since_ms
        self.longest_ms = 0
        self.classes: dict[int, int] = {}


@lru_cache(maxsize=10_000)
def gap_class(gap_ms: int) -> int:
    """Which class a gap belongs to. Up to 3 ms each has its own; from there a class is a quarter of a doubling."""
    if gap_ms < 4:
        return max(0, gap_ms)
    doublings = gap_ms.bit_length() - 3
    return min(CLASSES - 1, 4 * doublings + (gap_ms >> doublings))


def class_end_ms(number: int) -> int:
    """The longest gap that the class holds."""
    if number < 4:
        return number
    doublings, quarter = divmod(number, 4)
    return ((quarter + 5) << (doublings - 1)) - 1


def quantile_ms(classes: dict[int, int], share: float) -> int | None:
    """A gap that `share` of all gaps do not exceed: the end of its class; None without gaps."""
    wanted = sum(classes.values()) * share
    seen = 0
    for number in sorted(classes):
        seen += classes[number]
        if seen >= wanted and seen:
            return class_end_ms(number)
    return None
