"""Events beside the members' work. Each part draws from a stream of its own, so that a world without it stays.

The database's clock steps, the journal is read and pruned, users' own transactions commit progress, operators force
rebalances and freeze groups, and clients exceed the limits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.history import ClockStep

if TYPE_CHECKING:
    from tests.simulation.world import World


class Beside(ABC):
    """One part: `act` is called again and again until the faults end."""

    name: str
    every_ms: int

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = Random(f"{self.name}/{world.seed}")

    def start(self) -> None:
        self._again()

    def stop(self) -> None:
        """The faults end."""
        return

    @abstractmethod
    def act(self) -> None:
        """Do one thing now."""

    def _again(self) -> None:
        delay_ms = 1 + int(self.rng.expovariate(1 / self.every_ms))
        self.world.scheduler.after(delay_ms, None, self._act)

    def _act(self) -> None:
        if self.world.nemesis.active:
            if self.world.nemesis.may(self.name):
                self.act()
            self._again()


class ClockSteps(Beside):
    """The database's clock is set, as by NTP or by a failover to another host; the replicas' own clocks run on."""

    name = "step_clock"
    every_ms = 3_000

    def act(self) -> None:
        lease_ms, steps = self.world.profile.lease_ms, self.world.history.clock_steps
        if steps and self.world.scheduler.now_ms < steps[-1].at_ms + lease_ms:
            return  # Forth and back between two reads leaves no trace.
        by_ms = int(self.rng.uniform(0.2, 4) * lease_ms) * self.rng.choice((1, 1, -1))
        self.world.store.clock_ahead_ms += by_ms
        self.world.history.clock_steps.append(ClockStep(self.world.scheduler.now_ms, by_ms))
        self.world.sometimes(f"the database's clock steps {'forwards' if by_ms > 0 else 'backwards'}")
