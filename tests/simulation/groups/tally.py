"""What a run of many seeds came to."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.simulation.groups.world import run_seed
from tests.simulation.many import collecting_seldom

_SEEDS_OF_A_COLLECTION = 16


@dataclass(slots=True)
class Tally:
    """Sums over seeds, and the violations by seed."""

    seeds: int = 0
    rebalances: int = 0
    faults: int = 0
    handed_over: int = 0
    virtual_seconds: float = 0.0
    cpu_seconds: float = 0.0
    failures: dict[int, list[str]] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        self.seeds += other.seeds
        self.rebalances += other.rebalances
        self.faults += other.faults
        self.handed_over += other.handed_over
        self.virtual_seconds += other.virtual_seconds
        self.cpu_seconds += other.cpu_seconds
        self.failures.update(other.failures)

    @property
    def seeds_by_rule(self) -> dict[str, list[int]]:
        """The seeds that violate each rule."""
        found: dict[str, list[int]] = {}
        for seed, violations in sorted(self.failures.items()):
            for rule in sorted({text.partition(":")[0] for text in violations}):
                found.setdefault(rule, []).append(seed)
        return found

    def summary(self) -> str:
        return (
            f"{self.seeds} seeds, {self.rebalances} rebalances, {self.faults} faults, {self.handed_over} shares handed "
            f"over in {self.virtual_seconds / 3600:.1f} virtual hours: {self.cpu_seconds:.1f} CPU s"
        )


def run_seeds(seeds: Iterable[int]) -> Tally:
    """Play one world after the other."""
    tally = Tally()
    started = time.process_time()
    for seed in collecting_seldom(seeds, _SEEDS_OF_A_COLLECTION):
        outcome = run_seed(seed)
        tally.seeds += 1
        tally.rebalances += outcome.rebalances
        tally.faults += outcome.faults
        tally.handed_over += outcome.handed_over
        tally.virtual_seconds += outcome.seconds
        if outcome.violations:
            tally.failures[seed] = outcome.violations
    tally.cpu_seconds = time.process_time() - started
    return tally


def replay_command(seed: int) -> str:
    """What to type to see this seed again."""
    return f"python -m tests.simulation.groups --first {seed} --seeds 1"
