"""Run many seeds and report: `python -m rota.testing.groups --seeds 1000 --first 0`."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from rota.testing.groups.tally import Tally, replay_command, run_seeds
from rota.testing.groups.world import run_seed

_CHUNK = 100
_SHOWN_LINES = 60


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; 1 if anything was violated."""
    parser = argparse.ArgumentParser(prog="rota.testing.groups", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many worlds to play")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes side by side")
    parser.add_argument("--lines", type=int, default=_SHOWN_LINES, help="lines of the trace to show of a failed seed")
    options = parser.parse_args(argv)
    tally = run_side_by_side(range(options.first, options.first + options.seeds), options.jobs)
    _report(tally, options.lines)
    return 1 if tally.failures else 0


def run_side_by_side(seeds: range, jobs: int) -> Tally:
    """The same as `run_seeds` in several processes."""
    chunks = [seeds[start : start + _CHUNK] for start in range(0, len(seeds), _CHUNK)]
    tally = Tally()
    with ProcessPoolExecutor(max(1, min(jobs, len(chunks)))) as pool:
        for part in pool.map(run_seeds, chunks):
            tally.add(part)
    return tally


def _report(tally: Tally, lines: int) -> None:
    print(tally.summary())
    for rule, seeds in sorted(tally.seeds_by_rule.items()):
        print(f"  {len(seeds):6} × {rule}: seeds {', '.join(map(str, seeds[:8]))}")
    if tally.failures:
        first = min(tally.failures)
        print(f"\nseed {first} violates {len(tally.failures[first])} rules on Python {platform.python_version()}:")
        print(*run_seed(first).trace.tail_of_violation(lines), sep="\n")
        print(*(f"  {text}" for text in tally.failures[first]), f"  replay: {replay_command(first)}", sep="\n")
    print(f"{len(tally.failures)} of {tally.seeds} seeds violate something" if tally.failures else "0 violations")


if __name__ == "__main__":
    sys.exit(main())
