"""Several replicas on one Postgres: a forwarded heartbeat beside one at its owner, and two workers beside one."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import uvloop

from bench import load
from bench.connection import request_bytes
from bench.figures import Effort, Figure, transposed
from bench.load import Plan
from bench.members import Crowd
from bench.servers import Server, get_json, rota_server
from rota.storage import upgrade
from tests.support.postgres import PostgresServer

GROUPS = 40
MEMBERS_OF_A_GROUP = 10
CONNECTIONS = 64
SECONDS = 3.0
WORKERS_AIM = 1.7
HAND_OVER_S, POLL_S = 30.0, 0.1
LEASE_MS = "15000"
"""So that a machine which is busy with the load loses no shard."""


def run(effort: Effort) -> list[Figure]:
    """Heartbeats over HTTP, one a request, 64 at a time."""
    with tempfile.TemporaryDirectory(prefix="rota-bench-") as name, PostgresServer() as postgres:
        directory = Path(name)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            urls = [postgres.create_database(each) for each in ("forwarding", "one", "two")]
            for url in urls:
                runner.run(upgrade(url))
            return _forwarded(effort, runner, directory, urls[0]) + _workers(effort, runner, directory, *urls[1:])


# --- forwarded ------------------------------------------------------------------------------------------


def _forwarded(effort: Effort, runner: asyncio.Runner, directory: Path, url: str) -> list[Figure]:
    with (
        rota_server(directory, url, "--lease-ms", LEASE_MS) as asked,
        rota_server(directory, url, "--lease-ms", LEASE_MS) as owner,
    ):
        crowds = runner.run(_stable_crowds(asked))
        theirs = runner.run(_owned_by(owner, crowds, asked))
        requests = _heartbeats(theirs)

        def both() -> float:
            return asked.cpu_ms() + owner.cpu_ms()

        pairs = []
        for _ in range(effort.repeats):
            below = _load(owner, requests, both, SECONDS * effort.scale)
            pairs.append((*_load(asked, requests, both, SECONDS * effort.scale), *below))
        runner.run(_disperse(crowds))
    rate, cost, floor_rate, floor_cost = transposed(pairs)
    floor = "the same at their owner"
    return [
        Figure("replicas", "heartbeats, forwarded", "heartbeats/s", rate, floor, floor_rate),
        Figure("replicas", "CPU of 1,000 heartbeats, forwarded, both replicas", "ms", cost, floor, floor_cost),
    ]


# --- workers --------------------------------------------------------------------------------------------


def _workers(effort: Effort, runner: asyncio.Runner, directory: Path, one_url: str, two_url: str) -> list[Figure]:
    """The load generator has no core of its own, so beside the rate stands what the busiest process would allow."""
    one, two = ("--lease-ms", LEASE_MS), ("--lease-ms", LEASE_MS, "--workers", "2")
    with rota_server(directory, one_url, *one) as alone, rota_server(directory, two_url, *two) as shared:
        crowds = [runner.run(_stable_crowds(server)) for server in (alone, shared)]
        pairs = []
        for _ in range(effort.repeats):
            below = _busiest(alone, _heartbeats(crowds[0]), SECONDS * effort.scale)
            pairs.append((*_busiest(shared, _heartbeats(crowds[1]), SECONDS * effort.scale), *below))
        for some in crowds:
            runner.run(_disperse(some))
    rate, allowed, floor_rate, floor_allowed = transposed(pairs)
    times = tuple(below / above for above, below in zip(allowed, floor_allowed, strict=True))
    shared_cores, own_cores = "heartbeats, 2 workers, clients on their cores", "heartbeats, 2 workers, a core for each"
    return [
        Figure("replicas", shared_cores, "heartbeats/s", rate, "1 worker", floor_rate),
        Figure("replicas", own_cores, "heartbeats/s", allowed, "1 worker", floor_allowed),
        Figure("replicas", "1 worker's rate over that of 2, a core for each", "×", times, aim=1 / WORKERS_AIM),
    ]


def _busiest(server: Server, requests: Sequence[str], seconds: float) -> tuple[float, float]:
    """Heartbeats a second, and for each second of the CPU of that process which used most."""
    before = server.cpu_ms_of_each()
    outcome = load.run(Plan(server.port, tuple(requests), CONNECTIONS, 1, seconds))
    used = [after - earlier for after, earlier in zip(server.cpu_ms_of_each(), before, strict=True)]
    return outcome.answered / outcome.seconds, outcome.answered / max(used) * 1_000


# --- both -----------------------------------------------------------------------------------------------


def _load(server: Server, requests: Sequence[str], cpu_ms: Callable[[], float], seconds: float) -> tuple[float, float]:
    """Heartbeats a second, and milliseconds of CPU for 1,000 of them."""
    before_ms = cpu_ms()
    outcome = load.run(Plan(server.port, tuple(requests), CONNECTIONS, 1, seconds))
    return outcome.answered / outcome.seconds, (cpu_ms() - before_ms) / outcome.answered * 1_000


async def _stable_crowds(server: Server) -> list[Crowd]:
    crowds = [Crowd(f"replicas-{number}", server.port) for number in range(GROUPS)]
    for crowd in crowds:
        await crowd.grow(MEMBERS_OF_A_GROUP)
    await asyncio.gather(*(member.enter() for crowd in crowds for member in crowd.members))
    return crowds


async def _disperse(crowds: Sequence[Crowd]) -> None:
    for crowd in crowds:
        await crowd.all_live()
        await crowd.disperse()


def _heartbeats(crowds: Sequence[Crowd]) -> list[str]:
    return [
        request_bytes(
            f"{crowd.path}/heartbeat", {"member_id": member.member_id, "generation_id": member.generation_id}
        ).decode()
        for crowd in crowds
        for member in crowd.members
    ]


async def _owned_by(owner: Server, crowds: Sequence[Crowd], asked: Server) -> list[Crowd]:
    """Those that the asked replica forwards to this owner, once it has given it its share."""
    async with asyncio.timeout(HAND_OVER_S):
        while True:
            found = [crowd for crowd in crowds if _address_of_owner(asked, crowd).endswith(f":{owner.port}")]
            if found:
                return found
            await asyncio.sleep(POLL_S)


def _address_of_owner(server: Server, crowd: Crowd) -> str:
    return str(get_json(server, f"{crowd.path}/coordinator")["address"])
