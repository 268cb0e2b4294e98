"""A fleet on paper: from measured costs of a call to replicas, cores, and the load of Postgres and Redis.

`python -m bench.fleet_model` prints the table of docs/how-to/sizing.md; `--costs build/bench/race.json` takes costs of
a race on this machine. `--check` compares the model with a server of two workers here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import uvloop

from bench.figures import Effort
from bench.race.peer import DEADLINE_S
from bench.race.rota import RotaHttp
from bench.race.rows import PACE_S, PACED_SESSIONS, paced
from bench.servers import Server, get_json
from bench.setting import NAMESPACE

SHARDS = 64
BUSY = 0.5
"""Of a core: what a replica is kept below, so that a takeover finds room."""
FEWEST_REPLICAS = 3
IDLE_S = 5.0
REPLICA_BYTES, EMPTY_BYTES = 2 * 2**30, 112_000_000
CONNECTIONS_OF_A_REPLICA, CONNECTIONS = 8, 200
DAY_S = 86_400


IDLE_CORES = 0.01


@dataclass(frozen=True, slots=True)
class Costs:
    """On one machine, each from the run that is named."""

    heartbeat_ms: Mapping[str, float]
    """CPU of 1,000, by transport."""
    member_kb: Mapping[str, float]
    """Memory of a member with its connection, by transport. A process with 50 members has one connection."""
    forwarded: float = 1.86
    """How many times a call costs that its replica forwards: bench `replicas`, 2026-11-22."""
    change_ms: float = 0.32
    """CPU of each member of a group when one joins or leaves: two messages of bench `rebalance`, 2026-11-22."""
    commit_ms: float = 113.0
    """CPU of 1,000 commits over HTTP by 64 clients, without that of Postgres: bench on 2026-11-24."""
    redis_ms: float = 2.8
    """CPU of 1,000 pipelined calls of Valkey: the race's keep-alives together."""
    idle_cores: float = IDLE_CORES
    """Of a replica that is not called, with its part of Postgres: `--check` on 2026-11-25, two cores."""
    commits: float = 45_600.0
    """Commits a second that a Postgres of 16 cores carried for 8 workers in November 2026; it was not its limit."""


MEASURED = Costs(
    heartbeat_ms={"HTTP": 19.0, "HTTP, 50 a request": 1.5, "streams, one each": 110.0, "streams, shared": 1.4},
    member_kb={"HTTP": 29.0, "HTTP, 50 a request": 1.4, "streams, one each": 33.0, "streams, shared": 1.5},
)
"""Measured on 2026-11-24: heartbeats over HTTP by pairs of runs, streams in the race, memory by the bench `grpc`."""
RACE = {
    "HTTP": ("keep-alives one by one, 64 connections: CPU of 1,000", "Rota, HTTP"),
    "HTTP, 50 a request": ("keep-alives together: CPU of 1,000", "Rota, HTTP"),
    "streams, one each": ("keep-alives one by one, 64 connections: CPU of 1,000", "Rota, streams"),
    "streams, shared": ("keep-alives together: CPU of 1,000", "Rota, streams"),
}


@dataclass(frozen=True, slots=True)
class Fleet:
    """What its members do."""

    members: int
    transport: str = "HTTP"
    group: int = 10
    heartbeat_s: float = 3.0
    restarts_a_day: float = 4.0
    commit_s: float = 0.0
    """Between two commits of a member; 0: it makes none."""
    forwarded_share: float = 0.0
    """Of the calls: 0 where clients know the owner, (replicas - 1) / replicas behind a plain load balancer."""


@dataclass(frozen=True, slots=True)
class Need:
    """What a fleet takes."""

    heartbeats: float
    cores: float
    memory_gb: float
    replicas: int
    records: float
    """Changes of groups and commits of offsets, a second. Those of one moment share a transaction of Postgres."""
    redis_cores: float
    uses: Mapping[str, float]
    """Of each thing that there is only so much of: the part that is used; above 1 it does not suffice."""

    @property
    def first(self) -> str:
        """What ends first as the fleet grows."""
        return max(self.uses, key=lambda each: self.uses[each])


def need(fleet: Fleet, costs: Costs = MEASURED) -> Need:
    """The model: everything is linear in the number of members, and nothing else is assumed."""
    heartbeats = fleet.members / fleet.heartbeat_s
    # A restart is a leave and a join.
    changes = 2 * fleet.members * fleet.restarts_a_day / DAY_S
    commits = fleet.members / fleet.commit_s if fleet.commit_s else 0.0
    dearer = 1 + fleet.forwarded_share * (costs.forwarded - 1)
    calls = (
        heartbeats * costs.heartbeat_ms[fleet.transport] * dearer / 1e6
        + changes * fleet.group * costs.change_ms * dearer / 1e3
        + commits * costs.commit_ms * dearer / 1e6
    )
    memory = fleet.members * costs.member_kb[fleet.transport] * 1e3
    by_memory = memory / (REPLICA_BYTES - EMPTY_BYTES)
    replicas = max(FEWEST_REPLICAS, math.ceil(calls / (BUSY - costs.idle_cores)), math.ceil(by_memory))
    redis_cores = heartbeats * costs.redis_ms / 1e6
    uses = {
        "shards": replicas / SHARDS,
        "connections of Postgres": replicas * CONNECTIONS_OF_A_REPLICA / CONNECTIONS,
        "commits of Postgres": (changes + commits) / costs.commits,
        "the core of Redis": redis_cores,
    }
    in_gb = (memory + replicas * EMPTY_BYTES) / 1e9
    return Need(heartbeats, calls + replicas * costs.idle_cores, in_gb, replicas, changes + commits, redis_cores, uses)


def table(costs: Costs, sizes: Sequence[int] = (10**6, 10**7)) -> str:
    """Markdown: each size over each transport, then with commits."""
    fleets = [Fleet(size, transport) for transport in costs.heartbeat_ms for size in sizes]
    fleets += [Fleet(size, "HTTP, 50 a request", commit_s=10.0) for size in sizes]
    lines = [
        "| members | over | heartbeats/s | cores | replicas | GB | Postgres: changes/s | Redis: cores | scarcest |",
        "| --: | --- | --: | --: | --: | --: | --: | --: | --- |",
    ]
    for fleet in fleets:
        found = need(fleet, costs)
        over = fleet.transport + (f", a commit each {fleet.commit_s:g} s" if fleet.commit_s else "")
        first = f"{found.first} ({found.uses[found.first] * 100:,.0f} %)"
        lines.append(
            f"| {fleet.members:,} | {over} | {found.heartbeats:,.0f} | {found.cores:,.2f} | {found.replicas:,} "
            f"| {found.memory_gb:,.1f} | {found.records:,.1f} | {found.redis_cores:.2f} | {first} |"
        )
    return "\n".join(lines)


def costs_of(race: Path) -> Costs:
    """The costs of a race on this machine, and the kept ones where that has none."""
    quantities = {each["name"]: each["samples"] for each in json.loads(race.read_text())["quantities"]}
    found = {
        transport: median(quantities[name][system])
        for transport, (name, system) in RACE.items()
        if system in quantities.get(name, {})
    }
    return replace(MEASURED, heartbeat_ms={**MEASURED.heartbeat_ms, **found})


def check(sessions: int) -> str:
    """Predict the CPU of two workers at their shared port from that of one, with as many sessions, and measure it."""

    class TwoWorkers(RotaHttp):
        options = ("--workers", "2")

    async def cost(peer: RotaHttp) -> tuple[float, float]:
        """Cores without calls, and with them."""
        await peer.start()
        if peer.options:
            await _until_two_own(peer.rota)
        before_ms = peer.cpu_ms()
        await asyncio.sleep(IDLE_S)
        idle = (peer.cpu_ms() - before_ms) / IDLE_S / 1e3
        return idle, (await paced(peer, Effort(1, sessions / PACED_SESSIONS)))[0] * sessions / PACE_S / 1e6

    with (
        tempfile.TemporaryDirectory(prefix="rota-model-") as name,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        found = []
        for kind in (RotaHttp, TwoWorkers):
            with ExitStack() as stack:
                found.append(runner.run(cost(kind(Path(name), stack))))
    (idle_one, one), (idle_two, two) = found
    # Half of the calls come to the worker that does not own the group.
    predicted = idle_two + (one - idle_one) * (1 + (MEASURED.forwarded - 1) / 2)
    return f"""{sessions:,} sessions over HTTP, one call each {PACE_S:g} s, in cores:
one worker: {idle_one:.3f} idle, {one:.3f} called
two at their shared port: {idle_two:.3f} idle, {predicted:.3f} predicted, {two:.3f} measured"""


async def _until_two_own(server: Server) -> None:
    """Until the second worker has its shards."""
    paths = [f"/v1/namespaces/{NAMESPACE}/groups/g{number}/coordinator" for number in range(32)]
    async with asyncio.timeout(DEADLINE_S):
        while len({get_json(server, path)["address"] for path in paths}) < 2:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--costs", type=Path, help="race.json of a race on this machine")
    parser.add_argument("--check", type=int, metavar="SESSIONS", help="compare with two workers here")
    options = parser.parse_args()
    if options.check:
        print(check(options.check))
    else:
        print(table(costs_of(options.costs) if options.costs else MEASURED))


if __name__ == "__main__":
    main()
