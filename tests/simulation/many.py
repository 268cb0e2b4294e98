"""Playing many worlds: one after the other, side by side, and what the command lines of all tiers have in common."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Protocol, Self, TypeVar

_SECONDS_BETWEEN_REPORTS = 60.0


class Sums(Protocol):
    """Sums over some seeds, and the violations by seed."""

    seeds: int
    failures: dict[int, list[str]]

    def add(self, other: Self) -> None: ...


AnySums = TypeVar("AnySums", bound=Sums)


def parser_of_seeds(prog: str, description: str | None) -> argparse.ArgumentParser:
    """Options for which seeds to play, and how many at once."""
    options = argparse.ArgumentParser(prog=prog, description=description)
    options.add_argument("--seeds", type=int, default=1_000, help="how many worlds to play")
    options.add_argument("--first", type=int, default=0, help="the first seed")
    options.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes side by side")
    return options


def side_by_side(run: Callable[[range], AnySums], total: AnySums, seeds: range, jobs: int, chunk: int) -> AnySums:
    """Add to `total` what `run` returns for all seeds, `chunk` of them at a time, in several processes.

    It reports to standard error once a minute, so that the violations of a run that is cut off are not lost.
    """
    chunks = [seeds[start : start + chunk] for start in range(0, len(seeds), chunk)]
    next_report = time.monotonic() + _SECONDS_BETWEEN_REPORTS
    with ProcessPoolExecutor(max(1, min(jobs, len(chunks)))) as pool:
        for part in pool.map(run, chunks):
            total.add(part)
            if time.monotonic() >= next_report:
                next_report += _SECONDS_BETWEEN_REPORTS
                sys.stderr.write(f"{progress(total, seeds)}\n")
    return total


def progress(total: Sums, seeds: range) -> str:
    """One line: how many of the seeds were played, and which of them violate a rule."""
    failed = ", ".join(map(str, sorted(total.failures))) or "none"
    return f"{total.seeds} of {len(seeds)} seeds from {seeds.start} on were played; seeds with violations: {failed}"


def collecting_seldom(seeds: Iterable[int], every: int) -> Iterator[int]:
    """The seeds, with a collection of garbage at those alone that `every` divides.

    A world is one big web of references that lives for milliseconds: the collector would walk it again and again. What
    was there before the first world stays out of the collections: a test runner's heap takes half a second to walk.
    """
    gc.freeze()
    gc.disable()
    try:
        for seed in seeds:
            if seed % every == 0:
                gc.collect()
            yield seed
    finally:
        gc.enable()
        gc.unfreeze()


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Log nothing: what happens in a world is expected, and in its trace."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
