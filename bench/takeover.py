"""Time without an owner for a group: its replica is stopped, is killed, or hands it to a new one."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from itertools import count, islice, pairwise
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import uvloop

from bench.connection import Connection
from bench.figures import Effort, Figure, transposed
from bench.servers import Server, rota_server
from bench.setting import HOST, NAMESPACE
from rota.storage.migrate import upgrade
from tests.support.postgres import PostgresServer

REPLICAS = 3
ROUNDS = 8
"""Stops in one sample."""
PROBES = 8
"""Groups of the replica in question that are asked all the time. More would measure how busy the machine is."""
PAUSE_S = 0.01
LEASE_MS, SHORT_LEASE_MS = 5_000, 1_000
STOP_AIM_MS = 100.0
KILL_AIM_MS = 300.0
"""Beyond the lease."""
DEADLINE_S = 30.0


def run(effort: Effort) -> list[Figure]:
    """Groups are asked through a replica that stays, by commits: heartbeats are answered without an owner, too."""
    with tempfile.TemporaryDirectory(prefix="rota-bench-") as name, PostgresServer() as postgres:
        directory = Path(name)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            figures = []
            for lease_ms, stops in ((LEASE_MS, signal.SIGTERM), (SHORT_LEASE_MS, signal.SIGKILL)):
                url = postgres.create_database()
                runner.run(upgrade(url))
                with ExitStack() as stack:
                    replicas = _Replicas(directory, url, lease_ms, stack)
                    figures += runner.run(_figures(effort, replicas, stops))
    return figures


async def _figures(effort: Effort, replicas: _Replicas, stops: signal.Signals) -> list[Figure]:
    stopped, came = [], []
    for _ in range(effort.repeats):
        gone_ms: list[float] = []
        come_ms: list[float] = []
        rest_ms: list[float] = []
        for _ in range(effort.times(ROUNDS)):
            answers = await _replace_one(replicas, stops)
            gone_ms += answers[0]
            come_ms += answers[1]
            rest_ms += answers[2]
        rest = _p99(rest_ms)
        stopped.append((median(gone_ms), _p99(gone_ms), rest))
        came.append((median(come_ms), _p99(come_ms), rest))
    kill = stops == signal.SIGKILL
    what = f"kill -9, lease {replicas.lease_ms / 1_000:g} s" if kill else "a graceful stop"
    aim = replicas.lease_ms + KILL_AIM_MS if kill else STOP_AIM_MS
    figures = _two(f"{what}: to the first answer of the next owner", stopped, aim)
    if not kill:
        figures += _two("a new replica: from the last answer to its first one", came, STOP_AIM_MS)
    return figures


def _two(name: str, samples: Sequence[Sequence[float]], aim: float) -> list[Figure]:
    middle, worst, rest = transposed(samples)
    floor = "between answers at rest, p99"
    return [
        Figure("takeover", f"{name}, p50", "ms", middle, floor, rest),
        Figure("takeover", f"{name}, p99", "ms", worst, floor, rest, aim),
    ]


async def _replace_one(replicas: _Replicas, stops: signal.Signals) -> tuple[list[float], list[float], list[float]]:
    """Milliseconds without an owner of each group that moves: as one replica ends, and as another comes.

    The last are those between any two answers before all that.
    """
    ends, asked = replicas.servers[0], replicas.servers[1]
    owned = replicas.groups_of(ends, PROBES)
    async with _asking(asked, owned) as probes:
        await asyncio.sleep(20 * PAUSE_S)
        rest_ms = [pause for probe in probes for pause in probe.pauses_ms()]
        began = time.perf_counter()
        os.kill(ends.pid, stops)
        await _all_moved(probes)
        # A killed replica takes its last answers with it: its groups are without an owner from then on.
        gone_ms = [probe.without_owner_ms(began if stops == signal.SIGKILL else None) for probe in probes]
    replicas.remove(ends)
    async with _asking(asked, [f"g{number}" for number in range(2 * PROBES)]) as probes:
        await asyncio.sleep(20 * PAUSE_S)
        await asyncio.to_thread(replicas.add)
        await asyncio.sleep(20 * PAUSE_S)
        come_ms = [probe.without_owner_ms() for probe in probes if probe.has_moved()]
    return gone_ms, come_ms, rest_ms


class _Replicas:
    """Replicas on one store, the first of which is the oldest."""

    def __init__(self, directory: Path, store_url: str, lease_ms: int, stack: ExitStack) -> None:
        self.lease_ms = lease_ms
        self.servers: list[Server] = []
        self._where = (directory, store_url)
        self._stacks: dict[int, ExitStack] = {}
        stack.callback(self._end_all)
        for _ in range(REPLICAS):
            self.add()

    def add(self) -> None:
        """Start one more, and return when it has its assigned shards."""
        stack = ExitStack()
        server = stack.enter_context(rota_server(*self._where, "--lease-ms", str(self.lease_ms)))
        self._stacks[server.pid] = stack
        self.servers.append(server)

    def remove(self, server: Server) -> None:
        self.servers.remove(server)
        self._stacks.pop(server.pid).close()

    def groups_of(self, server: Server, wanted: int) -> list[str]:
        """Names of groups of this replica's shards, as it says itself."""
        names = map("g{}".format, count())
        with httpx.Client(base_url=f"http://{HOST}:{server.port}/v1/namespaces/{NAMESPACE}", trust_env=False) as client:

            def is_owned(name: str) -> bool:
                address = str(client.get(f"/groups/{name}/coordinator").raise_for_status().json()["address"])
                return address.endswith(f":{server.port}")

            return list(islice(filter(is_owned, names), wanted))

    def _end_all(self) -> None:
        for stack in self._stacks.values():
            stack.close()


class _Probe:
    """Commits for one group, again and again."""

    def __init__(self, group_id: str, connection: Connection) -> None:
        self._path = f"/v1/namespaces/{NAMESPACE}/groups/{group_id}/offsets"
        self._connection = connection
        self._answered: list[tuple[float, int]] = []
        """When, and as of which epoch of the shard."""
        self.last_answer: tuple[int, Any] | None = None

    async def run(self) -> None:
        for offset in count():
            commit = {"generation_id": -1, "offsets": [{"topic": "t", "partition": 0, "offset": offset}]}
            status, answer = self.last_answer = await self._connection.post(self._path, commit)
            if status == 200:
                self._answered.append((time.perf_counter(), answer["epoch"]))
            await asyncio.sleep(PAUSE_S)

    def has_moved(self) -> bool:
        return len({epoch for _, epoch in self._answered}) > 1

    def pauses_ms(self) -> list[float]:
        times = [at for at, _ in self._answered]
        return [(after - before) * 1_000 for before, after in pairwise(times)]

    def without_owner_ms(self, began: float | None = None) -> float:
        """From the last answer of the first owner, or from `began`, to the first one of another."""
        first_epoch = self._answered[0][1]
        last = max(at for at, epoch in self._answered if epoch == first_epoch)
        next_one = min(at for at, epoch in self._answered if epoch > first_epoch)
        return (next_one - (last if began is None else began)) * 1_000


@asynccontextmanager
async def _asking(server: Server, group_ids: Sequence[str]) -> AsyncIterator[list[_Probe]]:
    connections = [await Connection.open(server.port) for _ in group_ids]
    probes = [_Probe(group_id, connection) for group_id, connection in zip(group_ids, connections, strict=True)]
    tasks = [asyncio.create_task(probe.run()) for probe in probes]
    try:
        yield probes
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in connections:
            connection.close()


async def _all_moved(probes: Sequence[_Probe]) -> None:
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not all(probe.has_moved() for probe in probes):  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(PAUSE_S)
    except TimeoutError:
        stuck = [probe.last_answer for probe in probes if not probe.has_moved()]
        raise AssertionError(f"not within {DEADLINE_S:g} s answered by the next owner: {stuck}") from None


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.99))]
