"""What a bench returns: samples of one quantity, with those of the floor that were taken in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Effort:
    """How hard a bench tries: `repeats` samples of each figure, with `scale` times the usual work in each.

    `attacks` names those that the bench of attacks plays, `rows` those of the race; all where it is empty.
    """

    repeats: int = 5
    scale: float = 1.0
    attacks: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()

    def times(self, usual: int) -> int:
        """The work of one sample, where `usual` is that at scale 1."""
        return max(1, round(usual * self.scale))


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the report. A rate is better when high, anything else when low.

    `floor_samples` belong to `samples` pairwise: each pair was taken one right after the other, so that
    what else the machine does hits both. `aim` is in the figure's own unit.
    """

    bench: str
    name: str
    unit: str
    samples: tuple[float, ...]
    floor: str = ""
    floor_samples: tuple[float, ...] = ()
    aim: float | None = None

    @property
    def is_rate(self) -> bool:
        return self.unit.endswith("/s")

    @property
    def median(self) -> float:
        return median(self.samples)

    @property
    def best(self) -> float:
        return max(self.samples) if self.is_rate else min(self.samples)

    @property
    def floor_median(self) -> float | None:
        return median(self.floor_samples) if self.floor_samples else None

    @property
    def times_the_floor(self) -> float | None:
        """How many times the floor's cost ours is: 1 is the floor itself, for rates as for times."""
        if not self.floor_samples:
            return None
        pairs = zip(self.samples, self.floor_samples, strict=True)
        return median(floor / ours if self.is_rate else ours / floor for ours, floor in pairs)

    @property
    def aim_met(self) -> bool | None:
        if self.aim is None:
            return None
        return self.median >= self.aim if self.is_rate else self.median <= self.aim


def sample(effort: Effort, measure: Callable[[], float]) -> tuple[float, ...]:
    """`measure` as often as asked."""
    return tuple(measure() for _ in range(effort.repeats))


def transposed(pairs: Sequence[Sequence[float]]) -> list[tuple[float, ...]]:
    """One tuple of samples for each quantity, of one tuple of quantities for each sample."""
    return list(zip(*pairs, strict=True))
