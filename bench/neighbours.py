"""A namespace that rebalances all the time, and what its neighbours notice: the p99 of their heartbeats and commits."""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import quantiles

import uvloop

from bench.connection import Connection
from bench.figures import Effort, Figure, transposed
from bench.members import Crowd
from bench.servers import ROOT, rota_server
from rota.storage import upgrade
from tests.support.postgres import PostgresServer
from tests.support.processes import Process

QUIET_GROUPS, QUIET_MEMBERS = 10, 10
NOISY_GROUPS, NOISY_MEMBERS = 20, 5
REJOINS_PER_S = 100
CALLS_PER_S = 200
"""Of the neighbours: nine heartbeats to a commit."""
SECONDS = 5.0
AIM_PERCENT = 20.0
NOISY = "noisy"
FLOOR = "the same without the other namespace's rebalances"


def run(effort: Effort) -> list[Figure]:
    """By turns without the noise and with it, each pair one right after the other."""
    with tempfile.TemporaryDirectory(prefix="rota-bench-") as name, PostgresServer() as postgres:
        directory = Path(name)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            store_url = postgres.create_database("neighbours")
            runner.run(upgrade(store_url))
            stores = {"SQLite": f"sqlite:///{directory / 'rota.db'}", "Postgres": store_url}
            return [figure for name, url in stores.items() for figure in _on(name, url, directory, runner, effort)]


def _on(name: str, store_url: str, directory: Path, runner: asyncio.Runner, effort: Effort) -> list[Figure]:
    with rota_server(directory, store_url) as server:
        beside, alone, moved, rejoins = transposed(runner.run(_pairs(server.port, directory, effort)))
    p99 = f"p99 beside {REJOINS_PER_S} rejoins/s of another namespace, {name}"
    return [
        Figure("neighbours", p99, "ms", beside, FLOOR, alone),
        Figure("neighbours", f"how far that moves the p99, {name}", "%", moved, aim=AIM_PERCENT),
        Figure("neighbours", f"rejoins of the noisy namespace, {name}", "joins/s", rejoins),
    ]


async def _pairs(port: int, directory: Path, effort: Effort) -> list[tuple[float, ...]]:
    quiet = [_crowd(port, "quiet", number) for number in range(QUIET_GROUPS)]
    await asyncio.gather(*(crowd.grow(QUIET_MEMBERS) for crowd in quiet))
    await asyncio.gather(*(member.enter() for crowd in quiet for member in crowd.members))
    pairs = [await _pair(port, directory, quiet, SECONDS * effort.scale) for _ in range(effort.repeats)]
    await asyncio.gather(*(crowd.disperse() for crowd in quiet))
    return pairs


def _crowd(port: int, namespace: str, number: int) -> Crowd:
    crowd = Crowd(f"{namespace}-{number}", port)
    crowd.path = f"/v1/namespaces/{namespace}/groups/{crowd.group_id}"
    return crowd


async def _pair(port: int, directory: Path, quiet: Sequence[Crowd], seconds: float) -> tuple[float, ...]:
    """The p99 beside the noise and without it, what that is in percent, and the noise."""
    alone = await _p99_ms(port, quiet, seconds)
    # A process of its own: in this one, it would keep waiting who is timed.
    with Process([sys.executable, "-m", "bench.neighbours", str(port)], directory / "noise.log", cwd=ROOT) as noise:
        await asyncio.to_thread(noise.wait_for_line, NOISY)
        beside = await _p99_ms(port, quiet, seconds)
        noise.send(signal.SIGTERM)
        assert await asyncio.to_thread(noise.wait_for_exit) == 0, noise.output()
        rejoins_per_s = float(noise.output().split()[-1])
    return beside, alone, (beside / alone - 1) * 100, rejoins_per_s


async def be_noisy(port: int) -> None:
    """Rebalance groups until SIGTERM, then say how many members have rejoined a second."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    noisy = [_crowd(port, "noisy", number) for number in range(NOISY_GROUPS)]
    await asyncio.gather(*(crowd.grow(NOISY_MEMBERS) for crowd in noisy))
    await asyncio.gather(*(crowd.start(crowd.members) for crowd in noisy))
    await asyncio.gather(*(crowd.all_hold_one_generation() for crowd in noisy))

    print(NOISY, flush=True)
    began, before = time.perf_counter(), sum(crowd.messages for crowd in noisy)
    noise = asyncio.create_task(_make_noise(port, noisy))
    await stop.wait()
    # A rejoin is three messages: the heartbeat that was answered, the join and the sync.
    rejoins_per_s = (sum(crowd.messages for crowd in noisy) - before) / 3 / (time.perf_counter() - began)

    noise.cancel()
    await asyncio.gather(noise, return_exceptions=True)
    await asyncio.gather(*(crowd.all_hold_one_generation() for crowd in noisy))
    await asyncio.gather(*(crowd.disperse() for crowd in noisy))
    print(rejoins_per_s, flush=True)


async def _make_noise(port: int, noisy: Sequence[Crowd]) -> None:
    """Have group after group agree anew, so often that their members rejoin at the rate that is wanted."""
    connection, number = await Connection.open(port), 0
    pause_s, due = NOISY_MEMBERS / REJOINS_PER_S, time.perf_counter()
    try:
        while True:
            status, answer = await connection.post(f"{noisy[number % len(noisy)].path}/rebalance", {"reason": "noise"})
            assert status == 200, answer
            number += 1
            due += pause_s
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
    finally:
        connection.close()


async def _p99_ms(port: int, quiet: Sequence[Crowd], seconds: float) -> float:
    """Of calls that come when they are due, and are timed from then: who is late is not spared the wait."""
    connections = [await Connection.open(port) for _ in range(QUIET_GROUPS * QUIET_MEMBERS)]
    members = [(crowd, member) for crowd in quiet for member in crowd.members]
    began, waits = time.perf_counter(), list[float]()

    async def call(number: int) -> None:
        due = began + number / CALLS_PER_S
        await asyncio.sleep(due - time.perf_counter())
        crowd, member = members[number % len(members)]
        ids = {"member_id": member.member_id, "generation_id": member.generation_id}
        progress = {"topic": "t", "partition": number % len(members), "offset": number}
        body = {**ids, "offsets": [progress]} if number % 10 == 0 else ids
        what = "offsets" if number % 10 == 0 else "heartbeat"
        status, answer = await connections[number % len(connections)].post(f"{crowd.path}/{what}", body)
        assert status == 200, answer
        waits.append((time.perf_counter() - due) * 1_000)

    await asyncio.gather(*(call(number) for number in range(int(seconds * CALLS_PER_S))))
    for connection in connections:
        connection.close()
    return quantiles(waits, n=100)[-1]


if __name__ == "__main__":
    uvloop.run(be_noisy(int(sys.argv[1])))
