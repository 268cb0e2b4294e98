"""Run many seeds and report: `python -m rota.testing.runtimes --seeds 1000 --first 0`."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from functools import partial

from rota.testing.many import parser_of_seeds, side_by_side
from rota.testing.runtimes.tally import replay_command, run_seeds
from rota.testing.sim import Tally

_CHUNK = 50


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; 1 if anything was violated."""
    parser = parser_of_seeds("rota.testing.runtimes", __doc__)
    parser.add_argument("--setbacks", action="store_true", help="worlds whose store goes back to an earlier state")
    options = parser.parse_args(argv)
    seeds = range(options.first, options.first + options.seeds)
    tally = run_side_by_side(seeds, options.jobs, setbacks=options.setbacks)
    _report(tally, setbacks=options.setbacks)
    return 1 if tally.failures else 0


def run_side_by_side(seeds: range, jobs: int, *, setbacks: bool = False) -> Tally:
    """The same as `run_seeds` in several processes."""
    return side_by_side(partial(run_seeds, setbacks=setbacks), Tally(), seeds, jobs, _CHUNK)


def _report(tally: Tally, *, setbacks: bool) -> None:
    print(
        f"{tally.seeds} seeds of the production runtime, {tally.rebalances} rebalances, {tally.calls} calls, "
        f"{tally.steps} steps in {tally.cpu_seconds:.1f} CPU s: {tally.cpu_seconds / tally.seeds * 1000:.0f} ms a seed"
    )
    for situation, times in sorted(tally.sometimes.items()):
        print(f"  {times:8} × {situation}")
    for seed, found in tally.failures.items():
        print(f"\nseed {seed} violates {len(found)} rules on Python {platform.python_version()}:")
        print(*(f"  {text}" for text in found[:5]), f"  replay: {replay_command(seed, setbacks=setbacks)}", sep="\n")
    print(f"{len(tally.failures)} of {tally.seeds} seeds violate something" if tally.failures else "0 violations")


if __name__ == "__main__":
    sys.exit(main())
