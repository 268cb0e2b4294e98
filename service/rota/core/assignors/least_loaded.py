"""The least loaded of some members, while loads change."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush


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
