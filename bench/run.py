"""Runs the benches that are named, or all: `python -m bench.run [NAME …]`. It reports and asserts nothing."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from pathlib import Path

if __package__ in (None, ""):
    # Run as a script: the repository's root is where `bench` and `tests` are found.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

# Read when gRPC is loaded: this process starts others.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

from bench import report
from bench.figures import Effort, Figure
from rota.server.lifecycle import _spare_the_collector

BENCHES = (
    "core",
    "assignors",
    "expiry",
    "local",
    "commits",
    "http",
    "rebalance",
    "pauses",
    "grpc",
    "streams",
    "large",
    "replicas",
    "guarded",
    "attacks",
    "neighbours",
    "takeover",
    "stopping",
    "pipeline",
    "growth",
    "idle",
    "race",
)
MODULES = {name: f"bench.{name}" for name in BENCHES} | {"http": "bench.over_http", "grpc": "bench.over_grpc"}


def main() -> None:
    options = _options()
    effort = Effort(options.repeats, options.scale, tuple(options.attack), tuple(options.row))
    # As in the server: what the collector takes of a second is part of every figure.
    _spare_the_collector()
    where = report.environment(f"python -m bench.run {' '.join(sys.argv[1:])}".strip())
    figures: list[Figure] = []
    for name in options.names or BENCHES:
        figures += _run(name, effort)
        # Now already, for the next one may fail.
        report.save(options.out, figures, where)
    print(report.table(figures))


def _run(name: str, effort: Effort) -> list[Figure]:
    started = time.perf_counter()
    print(f"{name} …", end=" ", flush=True, file=sys.stderr)
    figures: list[Figure] = importlib.import_module(MODULES[name]).run(effort)
    print(f"{time.perf_counter() - started:.0f} s", file=sys.stderr)
    return figures


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*BENCHES, []], metavar="NAME", help=f"of {', '.join(BENCHES)}")
    parser.add_argument("--repeats", type=int, default=5, help="samples of each figure (5)")
    parser.add_argument("--scale", type=float, default=1.0, help="how much work a sample is, against the usual (1)")
    parser.add_argument("--attack", action="append", default=[], metavar="NAME", help="of `attacks`; all")
    parser.add_argument("--row", action="append", default=[], metavar="KEY", help="of `race`, as 'one by one'; all")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="where figures.json and .md go")
    return parser.parse_args()


if __name__ == "__main__":
    main()
