"""Run many seeds and report: `python -m tests.simulation.sim --first 0 --seeds 1000 [--world groups]`."""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial

from tests.simulation.checks import check
from tests.simulation.groups.world import run_program_seed
from tests.simulation.liveness_checks import check_shared_sessions
from tests.simulation.profiles import PROFILES, Profile, profile_of
from tests.simulation.setbacks import run_setback_seed
from tests.simulation.shrink import shrink
from tests.simulation.trace import trace
from tests.simulation.without import NOTHING, Without
from tests.simulation.world import World

REPLICAS, SETBACKS, GROUPS = "replicas", "setbacks", "groups"
"""Worlds of the production runtime, those whose store goes back to an earlier state, and groups of SDK objects."""
_CHUNK = 100
_SEEDS_OF_A_COLLECTION = 32
_SECONDS_BETWEEN_REPORTS = 60.0


@dataclass(slots=True)
class Tally:
    """What a run of seeds came to."""

    seeds: int = 0
    rebalances: int = 0
    cpu_seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    """How much happened besides."""
    sometimes: Counter[str] = field(default_factory=Counter)
    failures: dict[int, list[str]] = field(default_factory=dict)
    """Violations by seed."""

    def add(self, other: Tally) -> None:
        self.seeds += other.seeds
        self.rebalances += other.rebalances
        self.cpu_seconds += other.cpu_seconds
        self.counts.update(other.counts)
        self.sometimes.update(other.sometimes)
        self.failures.update(other.failures)


def run_seed(seed: int, profile: Profile | None = None, without: Without = NOTHING) -> tuple[World, list[str]]:
    """Play one world and check it."""
    world = World(seed, profile, without=without)
    history = world.run()
    return world, check(history, world.profile) + check_shared_sessions(world)


_RUN = {REPLICAS: run_seed, SETBACKS: run_setback_seed, GROUPS: run_program_seed}


@dataclass(frozen=True, slots=True)
class Choice:
    """Which worlds to play."""

    world: str = REPLICAS
    profile: str = ""
    """Empty: the seed draws it."""
    mutant: str = ""
    """A bug to plant first."""
    without: Without = NOTHING

    def run(self, seed: int, without: Without | None = None) -> tuple[World, list[str]]:
        """Play one world of the runtime."""
        profile = profile_of(seed, PROFILES[self.profile]) if self.profile else None
        return _RUN[self.world](seed, profile, self.without if without is None else without)

    def play(self, seed: int, tally: Tally) -> list[str]:
        """Play one world, and add what happened to the sums; returns the violations."""
        world, found = self.run(seed)
        tally.rebalances += world.history.rebalances
        history = world.history
        tally.counts.update(calls=len(history.calls), faults=len(history.acts), steps=world.scheduler.steps)
        tally.sometimes.update(world.history.sometimes)
        return found

    def replay_command(self, seed: int) -> str:
        """What to type to see this seed again."""
        options = f" --world {self.world}" if self.world != REPLICAS else ""
        options += f" --profile {self.profile}" if self.profile else ""
        options += f" --mutant {self.mutant}" if self.mutant else ""
        options += f" --without '{self.without}'" if self.without != NOTHING else ""
        return f"python -m tests.simulation.sim --first {seed} --seeds 1{options}"


def run_seeds(seeds: Iterable[int], choice: Choice = Choice(), *, stop_after: int = 10) -> Tally:
    """Play many worlds; gives up after `stop_after` of them have failed."""
    tally, started = Tally(), time.process_time()
    with _planted(choice.mutant):
        for seed in _collecting_seldom(seeds):
            found = choice.play(seed, tally)
            tally.seeds += 1
            if found:
                tally.failures[seed] = found
                if len(tally.failures) >= stop_after:
                    break
    tally.cpu_seconds = time.process_time() - started
    return tally


def _collecting_seldom(seeds: Iterable[int]) -> Iterator[int]:
    """The seeds, with a collection of garbage at a few of them.

    A world is one big web of references that lives for milliseconds: the collector would walk it again and again. What
    was there before the first world stays out of the collections: a test runner's heap takes half a second to walk.
    """
    gc.freeze()
    gc.disable()
    try:
        for seed in seeds:
            if seed % _SEEDS_OF_A_COLLECTION == 0:
                gc.collect()
            yield seed
    finally:
        gc.enable()
        gc.unfreeze()


def side_by_side(seeds: range, choice: Choice, jobs: int, chunk: int = _CHUNK) -> Tally:
    """Play all seeds, a chunk of them at a time, in several processes.

    It reports to standard error once a minute, so that the violations of a run that is cut off are not lost.
    """
    total, next_report = Tally(), time.monotonic() + _SECONDS_BETWEEN_REPORTS
    chunks = [seeds[start : start + chunk] for start in range(0, len(seeds), chunk)]
    with ProcessPoolExecutor(max(1, min(jobs, len(chunks)))) as pool:
        for part in pool.map(partial(run_seeds, choice=choice), chunks):
            total.add(part)
            if time.monotonic() >= next_report:
                next_report += _SECONDS_BETWEEN_REPORTS
                failed = ", ".join(map(str, sorted(total.failures))) or "none"
                played = f"{total.seeds} of {len(seeds)} seeds from {seeds.start} on were played"
                sys.stderr.write(f"{played}; seeds with violations: {failed}\n")
    return total


def failures_of(tally: Tally, choice: Choice = Choice()) -> str:
    """For a test's message: the first violation of each seed, and how to see it again."""
    failures = sorted(tally.failures.items())
    return "\n".join(f"seed {seed}: {found[0]}\n  {choice.replay_command(seed)}" for seed, found in failures)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; 1 if anything was violated."""
    parser = argparse.ArgumentParser(prog="tests.simulation.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many worlds to play")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes side by side")
    parser.add_argument("--world", choices=_RUN, default=REPLICAS, help="what to play")
    parser.add_argument(
        "--profile", choices=sorted(PROFILES), default="", help="one for all; drawn by the seed otherwise"
    )
    parser.add_argument("--mutant", default="", help="plant this bug of tests/simulation/mutants.py first")
    parser.add_argument("--without", type=Without.parse, default=NOTHING, help="leave this out, as --shrink prints it")
    parser.add_argument("--shrink", action="store_true", help="print the smallest world of the first seed that fails")
    options = parser.parse_args(argv)
    choice = Choice(options.world, options.profile, options.mutant, options.without)
    if options.shrink:
        return _shrink(options.first, choice)
    seeds = range(options.first, options.first + options.seeds)
    tally = side_by_side(seeds, choice, options.jobs)
    _report(tally, choice)
    return 1 if tally.failures else 0


def _shrink(seed: int, choice: Choice) -> int:
    with _planted(choice.mutant):
        shrunk = shrink(lambda left_out: choice.run(seed, left_out), choice.without)
    if shrunk is None:
        print(f"seed {seed} violates nothing")
        return 0
    for line in trace(shrunk.world.history):
        print(line)
    smaller = Choice(choice.world, choice.profile, choice.mutant, shrunk.world.without)
    print(f"\n{shrunk}\n  replay: {smaller.replay_command(seed)}")
    return 1


def _planted(mutant: str) -> AbstractContextManager[None]:
    if not mutant:
        return nullcontext()
    mutants = importlib.import_module("tests.simulation.mutants").MUTANTS
    if mutant not in mutants:
        raise SystemExit(f"no mutant {mutant}; there are: {', '.join(sorted(mutants))}")
    planted: AbstractContextManager[None] = mutants[mutant]()
    return planted


def _report(tally: Tally, choice: Choice) -> None:
    seconds = max(tally.cpu_seconds, 1e-9)
    counts = "".join(f", {count} {what}" for what, count in sorted(tally.counts.items()))
    print(
        f"{tally.seeds} seeds, {tally.rebalances} rebalances{counts} in {seconds:.1f} CPU s: "
        f"{tally.seeds / seconds:.1f} seeds/s, {tally.rebalances / seconds:.0f} rebalances/s"
    )
    for situation, times in sorted(tally.sometimes.items()):
        print(f"  {times:8} × {situation}")
    for seed, found in sorted(tally.failures.items()):
        print(f"\nseed {seed} violates {len(found)} rules on Python {platform.python_version()}:")
        print(*(f"  {text}" for text in found[:5]), f"  replay: {choice.replay_command(seed)}", sep="\n")
    print(f"{len(tally.failures)} of {tally.seeds} seeds violate something" if tally.failures else "0 violations")


if __name__ == "__main__":
    sys.exit(main())
