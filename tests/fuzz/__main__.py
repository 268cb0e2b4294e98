"""Fuzz for as long as one says: `python -m tests.fuzz --minutes 10`, one target: `python -m tests.fuzz http1`."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Sequence

from tests.fuzz.campaign import run
from tests.fuzz.targets import TARGETS


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; 1 if anything was found."""
    options = _parser().parse_args(argv)
    logging.getLogger().addHandler(logging.NullHandler())
    names = options.target or list(TARGETS)
    seed = int(time.time()) if options.seed is None else options.seed
    seconds = None if options.cases else 60 * options.minutes / len(names)
    failed = False
    for name in names:
        report = run(TARGETS[name], seed, cases=options.cases, seconds=seconds, first=options.first)
        print(report, flush=True)
        failed = failed or bool(report.findings)
    return int(failed)


def _parser() -> argparse.ArgumentParser:
    about = "\n".join(f"  {target.name:13} {target.about}" for target in TARGETS.values())
    parser = argparse.ArgumentParser(
        "tests.fuzz", description=f"{__doc__}\n\n{about}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", nargs="*", choices=[[], *TARGETS], help="all of them, if none is named")
    parser.add_argument("--minutes", type=float, default=1.0, help="for all targets together")
    parser.add_argument("--seed", type=int, help="the same cases again; by default another seed each time")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--cases", type=int, help="so many for each target, however long that takes")
    return parser


if __name__ == "__main__":
    sys.exit(main())
