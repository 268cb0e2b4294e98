"""Many seeds of the production runtime, and what they came to."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable

from rota.testing.checks import check
from rota.testing.runtimes.checks import check_shared_sessions
from rota.testing.runtimes.world import RuntimeWorld
from rota.testing.sim import Tally

_SEEDS_OF_A_COLLECTION = 32


def run_seed(seed: int) -> tuple[RuntimeWorld, list[str]]:
    """Play one world and check it."""
    world = RuntimeWorld(seed)
    history = world.run()
    return world, check(history, world.profile) + check_shared_sessions(world)


def run_seeds(seeds: Iterable[int], *, stop_after: int = 10) -> Tally:
    """Play many worlds; gives up after `stop_after` of them have failed."""
    tally = Tally()
    started = time.process_time()
    # As in `rota.testing.sim`; what was there before the first world stays out of the collections.
    gc.collect()
    gc.freeze()
    gc.disable()
    for seed in seeds:
        if seed % _SEEDS_OF_A_COLLECTION == 0:
            gc.collect()
        world, found = run_seed(seed)
        tally.seeds += 1
        tally.rebalances += world.history.rebalances
        tally.steps += world.scheduler.steps
        tally.calls += len(world.history.calls)
        tally.sometimes.update(world.history.sometimes)
        if found:
            tally.failures[seed] = found
            if len(tally.failures) >= stop_after:
                break
    gc.enable()
    gc.unfreeze()
    tally.cpu_seconds = time.process_time() - started
    return tally


def replay_command(seed: int) -> str:
    """What to type to see this seed again."""
    return f"python -m rota.testing.runtimes --first {seed} --seeds 1"
