"""Many seeds of the production runtime, and what they came to."""

from __future__ import annotations

from collections.abc import Iterable

from rota.testing.checks import check
from rota.testing.liveness_checks import check_shared_sessions
from rota.testing.runtimes.setbacks import run_setback_seed
from rota.testing.runtimes.world import RuntimeWorld
from rota.testing.sim import Tally, tally_of


def run_seed(seed: int) -> tuple[RuntimeWorld, list[str]]:
    """Play one world and check it."""
    world = RuntimeWorld(seed)
    history = world.run()
    return world, check(history, world.profile) + check_shared_sessions(world)


def run_seeds(seeds: Iterable[int], *, stop_after: int = 10, setbacks: bool = False) -> Tally:
    """Play many worlds; gives up after `stop_after` of them have failed."""
    return tally_of(seeds, run_setback_seed if setbacks else run_seed, stop_after=stop_after)


def replay_command(seed: int, *, setbacks: bool = False) -> str:
    """What to type to see this seed again."""
    return f"python -m rota.testing.runtimes --first {seed} --seeds 1{' --setbacks' if setbacks else ''}"
