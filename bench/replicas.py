"""Several replicas on one Postgres: a forwarded heartbeat beside one at its owner, and two workers beside one."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import uvloop

from bench import load
from bench.commits import commits_of
from bench.connection import request_bytes
from bench.figures import Effort, Figure, transposed
from bench.load import Plan
from bench.members import Crowd
from bench.over_grpc import HEARTBEAT, SESSION, a_call, a_group, callers, on_a_stream, streams
from bench.servers import Server, get_json, rota_server
from rota.storage.migrate import upgrade
from tests.support.postgres import PostgresServer

GROUPS = 40
MEMBERS_OF_A_GROUP = 10
CONNECTIONS = 64
SECONDS = 3.0
WORKERS_AIM = 1.7
HAND_OVER_S, SETTLED_S, POLL_S = 30.0, 1.0, 0.1
LEASE_MS = "15000"
"""So that a machine which is busy with the load loses no shard."""


def run(effort: Effort) -> list[Figure]:
    """Heartbeats over HTTP, one a request, 64 at a time; those of workers over gRPC, too, and their commits."""
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
        crowds = crowds_at(asked)
        runner.run(fill(crowds))
        theirs = runner.run(_owned_by(owner, crowds, asked))
        requests = heartbeats_of(theirs)

        def both() -> float:
            return asked.cpu_ms() + owner.cpu_ms()

        pairs = []
        for _ in range(effort.repeats):
            below = _load(owner, requests, both, SECONDS * effort.scale)
            pairs.append((*_load(asked, requests, both, SECONDS * effort.scale), *below))
        runner.run(disperse(crowds))
    rate, cost, floor_rate, floor_cost = transposed(pairs)
    floor = "the same at their owner"
    return [
        Figure("replicas", "heartbeats, forwarded", "heartbeats/s", rate, floor, floor_rate),
        Figure("replicas", "CPU of 1,000 heartbeats, forwarded, both replicas", "ms", cost, floor, floor_cost),
    ]


# --- workers --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Door:
    """Ports with the groups of the members that connect there: a worker's own, or those that workers share."""

    http: int
    grpc: int
    crowds: list[Crowd]
    workers: int = 1
    """The processes that the ports lead to."""


Calls = Callable[[Crowd], list[str]]
"""Requests of all members of a group."""

_Knock = Callable[[asyncio.Runner, Door, float], int]
"""Sends calls of all members for so many seconds; returns how many were answered."""


def _workers(effort: Effort, runner: asyncio.Runner, directory: Path, one_url: str, two_url: str) -> list[Figure]:
    """What the busiest process uses decides how much two workers carry where clients leave them a core each."""
    options = ("--lease-ms", LEASE_MS)
    with (
        rota_server(directory, one_url, *options) as alone,
        rota_server(directory, two_url, *options, "--workers", "2") as both,
    ):
        crowds = [crowds_at(server) for server in (alone, both)]
        for each in crowds:
            runner.run(fill(each))
        doors = [
            [Door(alone.port, alone.grpc_port, crowds[0])],
            runner.run(own_doors(both, crowds[1], 2)),
            [Door(both.port, both.grpc_port, crowds[1], workers=2)],
        ]
        figures: list[Figure] = []
        for what, knock in _WAYS.items():
            cost = partial(_cost_of_busiest, partial(knock, runner), SECONDS * effort.scale)
            samples = [list(map(cost, (alone, both, both), doors)) for _ in range(effort.repeats)]
            figures += _compared(what, *transposed(samples))
        for each in crowds:
            runner.run(disperse(each))
    return figures


def _compared(what: str, one: tuple[float, ...], own: tuple[float, ...], shared: tuple[float, ...]) -> list[Figure]:
    name = f"CPU of 1,000 {what}, busiest of 2 workers"
    times = tuple(above / below for above, below in zip(own, one, strict=True))
    return [
        Figure("replicas", f"{name}, at the owner's port", "ms", own, "1 worker", one),
        Figure("replicas", f"{name}, at the shared port", "ms", shared, "1 worker", one),
        Figure("replicas", f"2 workers' over 1 worker's, {what}, at the owner's port", "×", times, aim=1 / WORKERS_AIM),
    ]


def _cost_of_busiest(
    knock: Callable[[Door, float], int], seconds: float, server: Server, doors: Sequence[Door]
) -> float:
    """Milliseconds for 1,000 calls of all members, of the process that uses most: by its share of the groups."""
    groups = sum(len(door.crowds) for door in doors)
    costs = []
    for door in doors:
        before = server.cpu_ms_of_each()
        answered = knock(door, seconds)
        used = [after - earlier for after, earlier in zip(server.cpu_ms_of_each(), before, strict=True)]
        costs.append(max(used) / answered * 1_000 * len(door.crowds) / groups)
    return max(costs)


async def own_doors(server: Server, crowds: Sequence[Crowd], workers: int) -> list[Door]:
    """Those of the workers, once each has its share of the groups and nothing moves any more."""
    seen: list[tuple[int, int]] = []
    async with asyncio.timeout(HAND_OVER_S):
        while True:
            coordinators = [get_json(server, f"{crowd.path}/coordinator") for crowd in crowds]
            owners = [(one["worker_http_port"], one["worker_grpc_port"]) for one in coordinators]
            if len(set(owners)) == workers and (0, 0) not in owners and owners == seen:
                break
            seen = owners
            await asyncio.sleep(SETTLED_S)
    return [
        Door(*owner, [crowd for crowd, its in zip(crowds, owners, strict=True) if its == owner])
        for owner in set(owners)
    ]


def _over_http(calls_of: Calls, *, one_group: bool) -> _Knock:
    """Connections that carry a group each, as those of a client's process often do, or members of all groups, as those
    of a proxy do. Their first calls are of different groups either way. There are as many for each worker at all ports:
    the calls of one turn of its event loop share messages, and those of one moment a transaction.
    """

    def knock(_: asyncio.Runner, door: Door, seconds: float) -> int:
        calls = tuple(chain.from_iterable(zip(*map(calls_of, door.crowds), strict=True)))
        connections = len(door.crowds) if one_group else CONNECTIONS * door.workers
        return load.run(Plan(door.http, calls, connections, 1, seconds)).answered

    return knock


def _by_calls(runner: asyncio.Runner, door: Door, seconds: float) -> int:
    calls = [a_call(crowd, number) for crowd in door.crowds for number in range(MEMBERS_OF_A_GROUP)]
    return runner.run(_loaded(callers(calls, seconds), door))


def _on_streams(runner: asyncio.Runner, door: Door, seconds: float) -> int:
    everybody = on_a_stream([a_group(crowd) for crowd in door.crowds])
    return runner.run(_loaded(streams([everybody], seconds), door)) * len(door.crowds) * MEMBERS_OF_A_GROUP


async def _loaded(load_of: Callable[[str, str], Callable[[int], Awaitable[int]]], door: Door) -> int:
    return await load_of(HEARTBEAT, SESSION)(door.grpc)


_WAYS: dict[str, _Knock] = {
    "heartbeats over HTTP": _over_http(lambda crowd: heartbeats_of([crowd]), one_group=False),
    "heartbeats over HTTP, connections of one group each": _over_http(
        lambda crowd: heartbeats_of([crowd]), one_group=True
    ),
    "heartbeats over gRPC, one a call": _by_calls,
    "heartbeats over gRPC streams, all in a message": _on_streams,
    "commits over HTTP": _over_http(commits_of, one_group=False),
    "commits over HTTP, connections of one group each": _over_http(commits_of, one_group=True),
}


# --- both -----------------------------------------------------------------------------------------------


def _load(server: Server, requests: Sequence[str], cpu_ms: Callable[[], float], seconds: float) -> tuple[float, float]:
    """Heartbeats a second, and milliseconds of CPU for 1,000 of them."""
    before_ms = cpu_ms()
    outcome = load.run(Plan(server.port, tuple(requests), CONNECTIONS, 1, seconds))
    return outcome.answered / outcome.seconds, (cpu_ms() - before_ms) / outcome.answered * 1_000


def crowds_at(server: Server, groups: int = GROUPS) -> list[Crowd]:
    """So many groups, which have no members yet."""
    return [Crowd(f"replicas-{number}", server.port) for number in range(groups)]


async def fill(crowds: Sequence[Crowd]) -> None:
    """Let ten members enter each group; returns when each of them has its share."""
    for crowd in crowds:
        await crowd.grow(MEMBERS_OF_A_GROUP)
    await asyncio.gather(*(member.enter() for crowd in crowds for member in crowd.members))


async def disperse(crowds: Sequence[Crowd]) -> None:
    """End all members, which must be in their generation yet."""
    for crowd in crowds:
        await crowd.all_live()
        await crowd.disperse()


def heartbeats_of(crowds: Sequence[Crowd]) -> list[str]:
    """A heartbeat of each of their members."""
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
