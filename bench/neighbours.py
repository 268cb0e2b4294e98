"""A namespace that rebalances all the time, and what its neighbours notice: the p99 of their heartbeats and commits."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

import psutil
import uvloop

from bench.connection import Connection
from bench.figures import Effort, Figure
from bench.members import Crowd
from bench.servers import ROOT, rota_server
from rota.storage.migrate import upgrade
from tests.support.postgres import PostgresServer
from tests.support.processes import Process

QUIET_GROUPS, QUIET_MEMBERS = 10, 10
NOISY_GROUPS, NOISY_MEMBERS = 20, 5
REJOINS_PER_S = 100
CALLS_PER_S = 200
"""Of the neighbours: nine heartbeats to a commit."""
SECONDS = 3.0
WARM_UP_S = 1.0
ROUNDS = 8
"""Of windows in each repeat: a machine that stands for 50 ms spoils the p99 of one, and not the median of many."""
AIM_PERCENT = 15.0
NOISY = "noisy"
FLOOR = "the same without the other namespace's rebalances"


class Round(NamedTuple):
    """The p99 of three windows, one right after the other, in milliseconds."""

    alone: float
    beside: float
    """While another namespace of the same server rebalances."""
    elsewhere: float
    """While one of another server does, on the same core, with its own store: what the machine does to it."""
    rejoins_per_s: float
    """Of the noise beside it."""


def run(effort: Effort) -> list[Figure]:
    """By turns without the noise, with it, and with it at another server."""
    with (
        tempfile.TemporaryDirectory(prefix="rota-bench-") as name,
        _a_core_left() as core,
        PostgresServer() as postgres,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        directory = Path(name)
        urls = [postgres.create_database(database) for database in ("neighbours", "elsewhere")]
        for url in urls:
            runner.run(upgrade(url))
        files = [f"sqlite:///{directory / file}" for file in ("neighbours.db", "elsewhere.db")]
        stores = {"SQLite": files, "Postgres": urls}
        return [f for name, each in stores.items() for f in _on(name, each, directory, core, runner, effort)]


def _on(
    name: str, urls: Sequence[str], directory: Path, core: int, runner: asyncio.Runner, effort: Effort
) -> list[Figure]:
    with rota_server(directory, urls[0]) as server, rota_server(directory, urls[1]) as other:
        _pin(server.pid, core)
        _pin(other.pid, core)
        with Noise(server.port, directory) as noise, Noise(other.port, directory) as noise_elsewhere:
            repeats = runner.run(_measured(server.port, noise, noise_elsewhere, effort))
    rounds = [each for repeat in repeats for each in repeat]
    alone, beside = tuple(each.alone for each in rounds), tuple(each.beside for each in rounds)
    figures = (
        Figure("neighbours", f"p99 beside {REJOINS_PER_S} rejoins/s of another namespace", "ms", beside, FLOOR, alone),
        Figure("neighbours", "how far that moves the p99", "%", _moved(repeats, "beside"), aim=AIM_PERCENT),
        Figure("neighbours", "how far the same at another server moves it", "%", _moved(repeats, "elsewhere")),
        Figure("neighbours", "how far apart two p99 without it are", "%", _apart(alone)),
        Figure("neighbours", "rejoins of the noisy namespace", "joins/s", tuple(each.rejoins_per_s for each in rounds)),
    )
    return [replace(figure, name=f"{figure.name}, {name}") for figure in figures]


def _moved(repeats: Sequence[Sequence[Round]], where: str) -> tuple[float, ...]:
    """Of each repeat's medians, in percent."""
    return tuple(
        _percent(median(each.alone for each in rounds), median(getattr(each, where) for each in rounds))
        for rounds in repeats
    )


def _apart(alone: Sequence[float]) -> tuple[float, ...]:
    return tuple(abs(_percent(before, after)) for before, after in pairwise(alone))


def _percent(before: float, after: float) -> float:
    return (after / before - 1) * 100


@contextmanager
def _a_core_left() -> Iterator[int]:
    """Leave a core to the server that is measured, as it has where its members are on other machines.

    Whatever is started in the block shares the others. A machine with one core has none to leave.
    """
    cores = os.sched_getaffinity(0)
    left = min(cores)
    os.sched_setaffinity(0, cores - {left} or cores)
    try:
        yield left
    finally:
        os.sched_setaffinity(0, cores)


def _pin(pid: int, core: int) -> None:
    """Have all threads of a process run on this core."""
    for thread in psutil.Process(pid).threads():
        os.sched_setaffinity(thread.id, {core})


async def _measured(port: int, noise: Noise, noise_elsewhere: Noise, effort: Effort) -> list[list[Round]]:
    """The rounds of each repeat."""
    quiet = [_crowd(port, "quiet", number) for number in range(QUIET_GROUPS)]
    await asyncio.gather(*(crowd.grow(QUIET_MEMBERS) for crowd in quiet))
    await asyncio.gather(*(member.enter() for crowd in quiet for member in crowd.members))
    await _p99_ms(port, quiet, WARM_UP_S, 0)
    seconds, seeds = SECONDS * effort.scale, count()
    repeats = []
    for _ in range(effort.repeats):
        rounds = []
        for seed in (next(seeds) for _ in range(ROUNDS)):
            alone = await _p99_ms(port, quiet, seconds, seed)
            noise.begin()
            beside = await _p99_ms(port, quiet, seconds, seed)
            rejoins_per_s = await noise.end()
            noise_elsewhere.begin()
            elsewhere = await _p99_ms(port, quiet, seconds, seed)
            await noise_elsewhere.end()
            rounds.append(Round(alone, beside, elsewhere, rejoins_per_s))
        repeats.append(rounds)
    await asyncio.gather(*(crowd.disperse() for crowd in quiet))
    return repeats


def _crowd(port: int, namespace: str, number: int) -> Crowd:
    crowd = Crowd(f"{namespace}-{number}", port)
    crowd.path = f"/v1/namespaces/{namespace}/groups/{crowd.group_id}"
    return crowd


class Noise(Process):
    """The other namespace, in a process of its own: in this one, it would keep waiting who is timed.

    One for all windows: its members stay, so that none has to be missed before the next noise.
    """

    def __init__(self, port: int, directory: Path) -> None:
        command = [sys.executable, "-m", "bench.neighbours", str(port)]
        super().__init__(command, directory / f"noise-{port}.log", cwd=ROOT)
        self._number = count()
        self.wait_for_line(NOISY)

    def begin(self) -> None:
        self.send(signal.SIGUSR1)

    async def end(self) -> float:
        """How many members have rejoined a second; returns once the last of them has."""
        self.send(signal.SIGUSR1)
        said = await asyncio.to_thread(self.wait_for_line, rf"^{NOISY} {next(self._number)}: (\S+)$")
        return float(said[1])


async def be_noisy(port: int) -> None:
    """Between each two SIGUSR1 rebalance groups, then say how many members have rejoined a second."""
    # These members stand for other machines, so they must not take the server's core from it.
    os.nice(19)
    notified = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, notified.set)
    noisy = [_crowd(port, "noisy", number) for number in range(NOISY_GROUPS)]
    await asyncio.gather(*(crowd.grow(NOISY_MEMBERS) for crowd in noisy))
    await asyncio.gather(*(crowd.start(crowd.members) for crowd in noisy))
    await asyncio.gather(*(crowd.all_hold_one_generation() for crowd in noisy))

    print(NOISY, flush=True)
    for number in count():
        await _next(notified)
        print(f"{NOISY} {number}: {await _be_noisy_until(notified, port, noisy)}", flush=True)


async def _be_noisy_until(notified: asyncio.Event, port: int, noisy: Sequence[Crowd]) -> float:
    began, before = time.perf_counter(), sum(crowd.messages for crowd in noisy)
    noise = asyncio.create_task(_make_noise(port, noisy))
    await _next(notified)
    # A rejoin is three messages: the heartbeat that was answered, the join and the sync.
    rejoins_per_s = (sum(crowd.messages for crowd in noisy) - before) / 3 / (time.perf_counter() - began)
    noise.cancel()
    await asyncio.gather(noise, return_exceptions=True)
    await asyncio.gather(*(crowd.all_hold_one_generation() for crowd in noisy))
    return rejoins_per_s


async def _next(notified: asyncio.Event) -> None:
    await notified.wait()
    notified.clear()


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


async def _p99_ms(port: int, quiet: Sequence[Crowd], seconds: float, seed: int) -> float:
    """Of calls that come when they are due, and are timed from then: who is late is not spared the wait.

    They are due at random. In step with the noise, as at first, all commits of a window met a rebalance, or none.
    """
    connections = [await Connection.open(port) for _ in range(QUIET_GROUPS * QUIET_MEMBERS)]
    turns = [asyncio.Lock() for _ in connections]
    members = [(crowd, member) for crowd in quiet for member in crowd.members]
    chance = random.Random(seed)
    began, waits = time.perf_counter(), list[float]()

    async def call(number: int) -> None:
        due = began + chance.uniform(0, seconds)
        await asyncio.sleep(due - time.perf_counter())
        crowd, member = members[number % len(members)]
        ids = {"member_id": member.member_id, "generation_id": member.generation_id}
        progress = {"topic": "t", "partition": number % len(members), "offset": number}
        body = {**ids, "offsets": [progress]} if number % 10 == 0 else ids
        what = "offsets" if number % 10 == 0 else "heartbeat"
        which = number % len(connections)
        async with turns[which]:
            status, answer = await connections[which].post(f"{crowd.path}/{what}", body)
        assert status == 200, answer
        waits.append((time.perf_counter() - due) * 1_000)

    await asyncio.gather(*(call(number) for number in range(int(seconds * CALLS_PER_S))))
    for connection in connections:
        connection.close()
    return quantiles(waits, n=100)[-1]


if __name__ == "__main__":
    uvloop.run(be_noisy(int(sys.argv[1])))
