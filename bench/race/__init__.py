"""Rota beside its peers in one run: each server is started here, on loopback, with the settings of its own module."""

from __future__ import annotations

import asyncio
import gc
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import uvloop

from bench.figures import Effort, Figure
from bench.race.etcd import Etcd
from bench.race.install import NotInstalled
from bench.race.kafka import Kafka
from bench.race.nats import Nats
from bench.race.peer import Peer
from bench.race.postgres import Postgres
from bench.race.results import Result, save
from bench.race.rota import RotaHttp, RotaStreams
from bench.race.rows import Row, rows_of
from bench.race.valkey import Valkey
from bench.race.wire import Refused
from bench.race.zookeeper import ZooKeeper
from bench.report import environment

PEERS: tuple[type[Peer], ...] = (Etcd, Kafka, Nats, Valkey, Postgres, ZooKeeper)
FOLDER = Path("build/bench")


def run(effort: Effort) -> list[Figure]:
    """All systems take turns at each row. A system that cannot is named, with the reason."""
    rows = rows_of(effort)
    if unknown := set(effort.rows).difference(row.key for row in rows):
        raise SystemExit(f"no such row: {', '.join(unknown)}; there are {', '.join({row.key: None for row in rows})}")
    result = Result(environment(f"python -m bench.run {' '.join(sys.argv[1:])}"))
    with (
        tempfile.TemporaryDirectory(prefix="rota-race-") as name,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ExitStack() as stack,
    ):
        peers = runner.run(_start(Path(name), stack, result))
        for row in rows:
            if effort.rows and row.key not in effort.rows:
                continue
            runner.run(_race(row, peers, effort, result))
            # Now already, for the next row may fail.
            save(FOLDER, "race-rows" if effort.rows else "race", result)
    return result.figures()


async def _start(directory: Path, stack: ExitStack, result: Result) -> list[Peer]:
    rota = RotaHttp(directory, stack)
    peers: list[Peer] = [rota, RotaStreams(rota), *(peer(directory, stack) for peer in PEERS)]
    started = []
    for peer in peers:
        try:
            await peer.start()
            started.append(peer)
        except NotInstalled as error:
            result.skipped[peer.name] = str(error)
    result.systems = [peer.name for peer in started]
    return started


async def _race(row: Row, peers: list[Peer], effort: Effort, result: Result) -> None:
    began = time.perf_counter()
    out: dict[str, str] = {peer.name: peer.lacks[row.key] for peer in peers if row.key in peer.lacks}
    for _ in range(min(effort.repeats, row.repeats or effort.repeats)):
        for peer in peers:
            if peer.name in out:
                continue
            try:
                result.add(row.names(), peer.name, await row.measure(peer, effort))
            except (OSError, Refused, TimeoutError, AssertionError) as error:
                # Named in the table; the others go on.
                out[peer.name] = f"failed: {type(error).__name__}: {error}"[:200]
            gc.collect()
    for name, why in out.items():
        result.lack(row.names(), name, why)
    failed = [f"{name} {why}" for name, why in out.items() if why.startswith("failed")]
    print(
        f"\n  {row.names()[0][0]}: {time.perf_counter() - began:.0f} s {failed or ''}",
        end=" ",
        flush=True,
        file=sys.stderr,
    )
