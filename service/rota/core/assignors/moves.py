"""Moves of a topic's partitions that never send two partitions of it past each other."""

from __future__ import annotations


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
