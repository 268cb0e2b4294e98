"""Run many seeds and report: `python -m tests.simulation.sim --first 0 --seeds 1000 [--mutant NAME]`."""

from __future__ import annotations

import importlib
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial

from tests.simulation.checks import check
from tests.simulation.coverage import Reached, table, unknown
from tests.simulation.liveness_checks import check_shared_sessions
from tests.simulation.many import collecting_seldom, parser_of_seeds, side_by_side
from tests.simulation.profiles import PROFILES, Profile
from tests.simulation.setbacks import run_setback_seed
from tests.simulation.shrink import shrink
from tests.simulation.trace import trace
from tests.simulation.without import NOTHING, Without
from tests.simulation.world import World

_CHUNK = 250
_SEEDS_OF_A_COLLECTION = 64


@dataclass(slots=True)
class Tally:
    """What a run of seeds came to."""

    seeds: int = 0
    rebalances: int = 0
    steps: int = 0
    calls: int = 0
    cpu_seconds: float = 0.0
    sometimes: Counter[str] = field(default_factory=Counter)
    reached: Reached = field(default_factory=Counter)
    """The coverage of the core's inputs: see `coverage.py`."""
    failures: dict[int, list[str]] = field(default_factory=dict)
    """Violations by seed."""

    def add(self, other: Tally) -> None:
        self.seeds += other.seeds
        self.rebalances += other.rebalances
        self.steps += other.steps
        self.calls += other.calls
        self.cpu_seconds += other.cpu_seconds
        self.sometimes.update(other.sometimes)
        self.reached.update(other.reached)
        self.failures.update(other.failures)


def run_seed(seed: int, profile: Profile | None = None, without: Without = NOTHING) -> tuple[World, list[str]]:
    """Play one world and check it."""
    world = World(seed, profile, without=without)
    history = world.run()
    found = check(history, world.profile) + check_shared_sessions(world)
    return world, found + [f"S20 {each} is no outcome of the protocol" for each in unknown(history.reached)]


def run_seeds(
    seeds: Sequence[int], profile: Profile | None = None, *, stop_after: int = 10, without: Without = NOTHING
) -> Tally:
    """Play many worlds; gives up after `stop_after` of them have failed."""
    return tally_of(seeds, partial(run_seed, profile=profile, without=without), stop_after=stop_after)


def tally_of(seeds: Iterable[int], play: Callable[[int], tuple[World, list[str]]], *, stop_after: int = 10) -> Tally:
    """What `play` comes to, which returns a world that is over and its violations."""
    tally = Tally()
    started = time.process_time()
    for seed in collecting_seldom(seeds, _SEEDS_OF_A_COLLECTION):
        world, found = play(seed)
        tally.seeds += 1
        tally.rebalances += world.history.rebalances
        tally.steps += world.scheduler.steps
        tally.calls += len(world.history.calls)
        tally.sometimes.update(world.history.sometimes)
        tally.reached.update(world.history.reached)
        if found:
            tally.failures[seed] = found
            if len(tally.failures) >= stop_after:
                break
    tally.cpu_seconds = time.process_time() - started
    return tally


def replay_command(
    seed: int, profile: Profile | None = None, mutant: str | None = None, without: Without = NOTHING
) -> str:
    """What to type to see this seed again."""
    options = f" --profile {profile.name}" if profile else ""
    options += f" --mutant {mutant}" if mutant else ""
    options += f" --without '{without}'" if without != NOTHING else ""
    return f"python -m tests.simulation.sim --first {seed} --seeds 1{options}"


def _replay(seed: int, profile: Profile | None, mutant: str | None, without: Without, *, setbacks: bool) -> str:
    return replay_command(seed, profile, mutant, without) + (" --setbacks" if setbacks else "")


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; 1 if anything was violated."""
    parser = parser_of_seeds("tests.simulation.sim", __doc__)
    parser.add_argument("--profile", choices=sorted(PROFILES), help="one profile for all; drawn by the seed otherwise")
    parser.add_argument("--setbacks", action="store_true", help="worlds whose store goes back to an earlier state")
    parser.add_argument("--mutant", help="plant this bug of tests/simulation/mutants.py first")
    parser.add_argument("--without", type=Without.parse, default=NOTHING, help="leave this out, as --shrink prints it")
    parser.add_argument("--shrink", action="store_true", help="print the smallest world of the first seed that fails")
    parser.add_argument("--coverage", action="store_true", help="print which events met which states of a group")
    options = parser.parse_args(argv)
    profile = PROFILES.get(options.profile or "")
    if options.shrink:
        return _shrink(options.first, profile, options.mutant, options.without, setbacks=options.setbacks)
    seeds = range(options.first, options.first + options.seeds)
    tally = run_side_by_side(seeds, profile, options.jobs, options.mutant, options.without, setbacks=options.setbacks)
    _report(tally, profile, options.mutant, options.without, setbacks=options.setbacks)
    if options.coverage:
        print("\n".join(["", *table(tally.reached)]))
    return 1 if tally.failures else 0


def run_side_by_side(
    seeds: range,
    profile: Profile | None,
    jobs: int,
    mutant: str | None = None,
    without: Without = NOTHING,
    *,
    setbacks: bool = False,
) -> Tally:
    """The same as `run_seeds` in several processes; the order of the seeds does not matter to any of them."""
    run = partial(_run_chunk, profile=profile, mutant=mutant, without=without, setbacks=setbacks)
    return side_by_side(run, Tally(), seeds, jobs, _CHUNK)


def _run_chunk(seeds: range, profile: Profile | None, mutant: str | None, without: Without, setbacks: bool) -> Tally:
    with _planted(mutant):
        return tally_of(seeds, partial(_player(setbacks=setbacks), profile=profile, without=without))


def _player(*, setbacks: bool) -> Callable[..., tuple[World, list[str]]]:
    return run_setback_seed if setbacks else run_seed


def _shrink(seed: int, profile: Profile | None, mutant: str | None, without: Without, *, setbacks: bool) -> int:
    play = _player(setbacks=setbacks)
    with _planted(mutant):
        shrunk = shrink(lambda left_out: play(seed, profile, left_out), without)
    if shrunk is None:
        print(f"seed {seed} violates nothing")
        return 0
    for line in trace(shrunk.world.history):
        print(line)
    print(f"\n{shrunk}\n  replay: {_replay(seed, profile, mutant, shrunk.world.without, setbacks=setbacks)}")
    return 1


def _planted(mutant: str | None) -> AbstractContextManager[None]:
    if mutant is None:
        return nullcontext()
    mutants = importlib.import_module("tests.simulation.mutants").MUTANTS
    if mutant not in mutants:
        raise SystemExit(f"no mutant {mutant}; there are: {', '.join(sorted(mutants))}")
    planted: AbstractContextManager[None] = mutants[mutant]()
    return planted


def _report(
    tally: Tally, profile: Profile | None, mutant: str | None, without: Without = NOTHING, *, setbacks: bool = False
) -> None:
    seconds = max(tally.cpu_seconds, 1e-9)
    print(
        f"{tally.seeds} seeds, {tally.rebalances} rebalances, {tally.calls} calls, {tally.steps} steps "
        f"in {seconds:.1f} CPU s: {tally.seeds / seconds:.1f} seeds/s, {tally.rebalances / seconds:.0f} rebalances/s"
    )
    for situation, times in sorted(tally.sometimes.items()):
        print(f"  {times:8} × {situation}")
    for seed, found in tally.failures.items():
        print(f"\nseed {seed} violates {len(found)} rules on Python {platform.python_version()}:")
        for text in found[:5]:
            print(f"  {text}")
        print(f"  replay: {_replay(seed, profile, mutant, without, setbacks=setbacks)}")
    print(f"{len(tally.failures)} of {tally.seeds} seeds violate something" if tally.failures else "0 violations")


if __name__ == "__main__":
    sys.exit(main())
