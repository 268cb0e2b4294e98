"""Growth by cores: the pipeline's steps on 2, 4, 8, … cores, and servers with 1, 2, 4, … workers, where there are such.

The processes of a pipeline are kept to so many cores, with Postgres. A server's workers and the processes of the load
have a core each, so half of a machine's cores are workers' at most.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import psutil
import uvloop

from bench import load
from bench.commits import commits_of
from bench.figures import Effort, Figure, transposed
from bench.load import Plan
from bench.pipeline import LINES, Journal, steps
from bench.replicas import (
    CONNECTIONS,
    LEASE_MS,
    SECONDS,
    Calls,
    Door,
    crowds_at,
    disperse,
    fill,
    heartbeats_of,
    own_doors,
)
from bench.servers import ROOT, rota_server
from rota.storage.migrate import upgrade
from tests.support.postgres import PostgresServer

_JOURNAL = LINES[1]
_GROUPS_OF_A_WORKER = 20
_MOST_WORKERS = 8
_CALLS: dict[str, Calls] = {"heartbeats": lambda crowd: heartbeats_of([crowd]), "commits": commits_of}


def run(effort: Effort) -> list[Figure]:
    """As many cores as this process may use."""
    cores = len(os.sched_getaffinity(0))
    return [*_pipeline(effort, cores), *_workers(effort, cores)]


# --- the pipeline ---------------------------------------------------------------------------------------


def _pipeline(effort: Effort, most: int) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="rota-bench-") as name, PostgresServer() as postgres:
        journal = Journal.generated(postgres.create_database("journal"), effort.times(_JOURNAL))
        for cores in _doubled(2, most):
            folder = Path(name) / str(cores)
            with _kept_to(postgres.process.pid, cores):
                asked = [str(each) for each in (journal.lines, cores, postgres.process.pid, effort.repeats, folder)]
                command = [sys.executable, "-m", "bench.growth", journal.dsn, *asked]
                done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
            for step, rates in json.loads(done.stdout).items():
                unit = "generations/s" if step == "advice" else "lines/s"
                yield Figure("growth", f"{step}, {cores} cores, {journal.lines:,} lines", unit, tuple(rates))


@contextmanager
def _kept_to(server: int, cores: int) -> Iterator[None]:
    """Keep this process and a server's to the first cores, with all that they start meanwhile."""
    these = [os.getpid(), server, *(each.pid for each in psutil.Process(server).children(recursive=True))]
    all_of_them = os.sched_getaffinity(0)
    for pid in these:
        os.sched_setaffinity(pid, sorted(all_of_them)[:cores])
    try:
        yield
    finally:
        for pid in these:
            os.sched_setaffinity(pid, all_of_them)


# --- workers --------------------------------------------------------------------------------------------


def _workers(effort: Effort, cores: int) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="rota-bench-") as name, PostgresServer() as postgres:
        directory = Path(name)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            for workers in _doubled(1, min(_MOST_WORKERS, cores // 2)):
                url = postgres.create_database(f"workers{workers}")
                runner.run(upgrade(url))
                yield from _of_workers(effort, runner, directory, url, workers)


def _of_workers(effort: Effort, runner: asyncio.Runner, directory: Path, url: str, workers: int) -> Iterator[Figure]:
    several = ("--workers", str(workers)) if workers > 1 else ()
    with rota_server(directory, url, "--lease-ms", LEASE_MS, *several) as server:
        crowds = crowds_at(server, _GROUPS_OF_A_WORKER * workers)
        shared = [Door(server.port, server.grpc_port, crowds[number::workers]) for number in range(workers)]
        own = runner.run(own_doors(server, crowds, workers)) if workers > 1 else shared
        # Members come once the workers have shared out the groups: no coordinator moves while they join.
        runner.run(fill(crowds))
        seconds = SECONDS * effort.scale
        for what, calls_of in _CALLS.items():
            for connections, one_group in (("of one group each", True), ("that mix all groups", False)):
                samples = [
                    [_rate(doors, calls_of, seconds, one_group=one_group) for doors in (shared, own)]
                    for _ in range(effort.repeats)
                ]
                at_shared, at_own = transposed(samples)
                name, unit = f"{what}, {workers} workers, connections {connections}", f"{what}/s"
                yield Figure("growth", f"{name}, shared port", unit, at_shared, "at the owners' ports", at_own)
        runner.run(disperse(crowds))


def _rate(doors: Sequence[Door], calls_of: Calls, seconds: float, *, one_group: bool) -> float:
    """Calls a second of all members, with a process of the load for each door."""

    def knock(door: Door) -> int:
        calls = tuple(chain.from_iterable(zip(*map(calls_of, door.crowds), strict=True)))
        connections = len(door.crowds) if one_group else CONNECTIONS
        return load.run(Plan(door.http, calls, connections, 1, seconds)).answered

    with ThreadPoolExecutor(len(doors)) as pool:
        return sum(pool.map(knock, doors)) / seconds


def _doubled(least: int, most: int) -> list[int]:
    return [number for number in (2**power for power in range(11)) if least <= number <= most]


def main() -> None:
    """The steps of one pipeline on `dsn`, kept to its cores by what has started it; prints its rates as JSON."""
    dsn, *numbers, folder = sys.argv[1:]
    lines, cores, server, repeats = map(int, numbers)
    json.dump(steps(dsn, lines, cores, server, repeats, Path(folder)), sys.stdout)


if __name__ == "__main__":
    main()
