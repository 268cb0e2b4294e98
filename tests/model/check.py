"""Check the rules in TLA+ within larger bounds, and print what that took: `make model`.

`python -m tests.model.check [--small]`
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from tests.model.specification import Bounds
from tests.model.trace import played, replay
from tests.support.tlc import Verdict, check

SMALL = {
    "eager": Bounds(max_commits=1),
    "cooperative": Bounds(cooperative=True, max_gen=3, max_ahead=0),
    "tokens": Bounds(members=1, writes=True, max_commits=1, max_gen=3, max_faults=2),
}
LARGE = {
    "eager, two faults": Bounds(max_faults=2),
    "eager, commits": Bounds(max_commits=2, writes=True),
    "cooperative, commits": Bounds(cooperative=True, max_gen=3, max_commits=1),
    "cooperative, two partitions": Bounds(cooperative=True, partitions=2, max_gen=3),
    "one member, three faults": Bounds(members=1, max_commits=1, max_gen=3, max_faults=3),
}
FAIR = Bounds(max_gen=9, max_ahead=0)
TRACED = range(20)


def main(argv: Sequence[str] | None = None) -> int:
    """A line for each world; 1 if a rule is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="only what make test-all checks")
    small = parser.parse_args(argv).small
    broken = 0
    for name, bounds in (SMALL if small else SMALL | LARGE).items():
        broken += _report(name, "Rota", bounds.configuration())
    broken += _report("liveness", "Rota", replace(FAIR, members=1 if small else 2).fair_configuration())
    if not small:
        broken += _replay(TRACED)
    return int(broken > 0)


def _report(name: str, module: str, configuration: str) -> bool:
    started = time.monotonic()
    verdict = check(module, configuration)
    seconds = time.monotonic() - started
    found = verdict.violated or "all rules hold"
    print(
        f"{name:32}{verdict.distinct_states:>12,} states, depth {verdict.depth:>3}{seconds:>8.0f} s  {found}",
        flush=True,
    )
    return _shown(verdict)


def _replay(seeds: range) -> int:
    worlds = [played(seed) for seed in seeds]
    verdicts = [replay(world, group) for world in worlds for group in world.groups]
    events = sum(verdict.depth - 1 for verdict in verdicts)
    print(f"{len(verdicts)} groups of {len(worlds)} simulated worlds: {events:,} events follow the rules", flush=True)
    return sum(map(_shown, verdicts))


def _shown(verdict: Verdict) -> bool:
    if verdict.violated:
        print(verdict.output)
    return bool(verdict.violated)


if __name__ == "__main__":
    sys.exit(main())
