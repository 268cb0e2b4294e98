"""Classes of gaps between two signs of life: four to each doubling, so that sums of histograms stay histograms."""

from __future__ import annotations

from functools import lru_cache

CLASSES = 96
"""The last one begins at about nine hours."""


class GapCount:
    """The gaps of one member since `since_ms`: how many by class. `sessions.renew_sessions` counts them.

    Nearly all gaps of a member are of one class: a dictionary for that would take three times as much as all the rest.
    """

    __slots__ = ("_others", "in_a_row", "longest_ms", "number", "since_ms")

    def __init__(self, since_ms: int, number: int) -> None:
        """`number` is the class of the first gap, which is not counted yet."""
        self.since_ms = since_ms
        self.longest_ms = 0
        self.number = number
        """The class of the last gap."""
        self.in_a_row = 0
        """How many of that class came one after the other."""
        self._others: dict[int, int] | None = None
        """Those before them."""

    def begin_row(self, number: int) -> None:
        """Count a gap that is of another class than the last one."""
        if self._others is None:
            self._others = {}
        self._others[self.number] = self._others.get(self.number, 0) + self.in_a_row
        self.number, self.in_a_row = number, 1

    @property
    def classes(self) -> dict[int, int]:
        """How many gaps there were of each class."""
        classes = dict(self._others or {})
        classes[self.number] = classes.get(self.number, 0) + self.in_a_row
        return classes


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
