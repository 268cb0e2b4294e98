"""Run many seeds and report: `python -m tests.simulation.groups --seeds 1000 --first 0`."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence

from tests.simulation.groups.tally import Tally, replay_command, run_seeds
from tests.simulation.groups.world import run_seed
from tests.simulation.many import parser_of_seeds, side_by_side

_CHUNK = 100
_SHOWN_LINES = 60


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; 1 if anything was violated."""
    parser = parser_of_seeds("tests.simulation.groups", __doc__)
    parser.add_argument("--lines", type=int, default=_SHOWN_LINES, help="lines of the trace to show of a failed seed")
    options = parser.parse_args(argv)
    tally = run_side_by_side(range(options.first, options.first + options.seeds), options.jobs)
    _report(tally, options.lines)
    return 1 if tally.failures else 0


def run_side_by_side(seeds: range, jobs: int) -> Tally:
    """The same as `run_seeds` in several processes."""
    return side_by_side(run_seeds, Tally(), seeds, jobs, _CHUNK)


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
