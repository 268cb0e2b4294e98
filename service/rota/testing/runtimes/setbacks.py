"""Worlds of the production runtime with a store that goes back to an earlier state: see `rota.testing.setbacks`."""

from __future__ import annotations

from rota.testing.profiles import Profile
from rota.testing.runtimes.store import RuntimeStore
from rota.testing.runtimes.world import RuntimeWorld
from rota.testing.setbacks import Back, SetbackRules, SetbackStore, Snapshot


class RuntimeSetbackStore(SetbackStore, RuntimeStore):
    """A store for the production runtime of which snapshots are kept."""


class RuntimeSetbackWorld(SetbackRules, RuntimeWorld):
    """A world of the production runtime with a store that goes back once or twice."""

    store: RuntimeSetbackStore

    def __init__(self, seed: int, profile: Profile | None = None) -> None:
        self.prepare(seed)
        super().__init__(seed, profile)
        self.plan_setbacks()

    def _go_back(self, back: Back, to: Snapshot) -> None:
        super()._go_back(back, to)
        if self.served:
            # The count of partitions may be lost. An owner that has not noticed yet would acknowledge it from memory.
            self.scheduler.after(2 * self.profile.lease_ms, None, self.topics.changed)

    def _new_store(self) -> RuntimeSetbackStore:
        return RuntimeSetbackStore(self.scheduler, self.rng, self.profile, self.history)


def run_setback_seed(seed: int) -> tuple[RuntimeSetbackWorld, list[str]]:
    """Play one world with a store that goes back, and check it."""
    world = RuntimeSetbackWorld(seed)
    history = world.run()
    return world, [*history.violations, *world.check_floors()]
