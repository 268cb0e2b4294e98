"""Memory of one server with members that idle: parked in HTTP calls, and 100,000 that share streams."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import grpc
import uvloop

from bench.connection import Connection
from bench.figures import Effort, Figure, transposed
from bench.members import Crowd
from bench.over_grpc import idle_streams
from bench.servers import Server, bare_server, rota_server
from bench.setting import HOST
from bench.stream_members import SESSION

PARKED, GROUPS_AT_ONCE, MEMBERS_OF_A_GROUP = 2_000, 4, 50
MANY, STREAMS_OF_A_WAVE, MEMBERS_OF_A_STREAM = 100_000, 2, 500
PARKED_AIM_KB, MEMBER_AIM_KB, SERVER_AIM_MB = 14.0, 1.2, 2_147.0
SETTLE_S = 1.0


def run(effort: Effort) -> list[Figure]:
    """What a server's memory grows by, after as many of the same kind have warmed it up."""
    with tempfile.TemporaryDirectory(prefix="rota-bench-") as name:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return [*_parked(effort, runner, Path(name)), *_many(effort, runner, Path(name))]


def _parked(effort: Effort, runner: asyncio.Runner, directory: Path) -> list[Figure]:
    number = max(MEMBERS_OF_A_GROUP, effort.times(PARKED))
    pairs = []
    for turn in range(min(2, effort.repeats)):
        with rota_server(directory, f"sqlite:///{directory / f'parked-{turn}.db'}") as ours:
            with bare_server(directory) as bare:
                pairs.append(
                    (runner.run(_kb_of_a_parked_call(ours, number)), runner.run(_kb_of_a_connection(bare, number)))
                )
    kb, floor_kb = transposed(pairs)
    floor = "bare uvicorn, a connection that idles"
    return [Figure("idle", "memory of a member parked in an HTTP call", "kB", kb, floor, floor_kb, PARKED_AIM_KB)]


async def _kb_of_a_parked_call(server: Server, number: int) -> float:
    crowds: list[Crowd] = []
    grown = []
    try:
        for wave in range(2):
            before_kb = server.resident_kb()
            for first in range(0, number, MEMBERS_OF_A_GROUP * GROUPS_AT_ONCE):
                some = [Crowd(f"parked-{wave}-{first}-{n}", server.port) for n in range(GROUPS_AT_ONCE)]
                crowds += some
                await asyncio.gather(*map(_park, some))
            await asyncio.sleep(SETTLE_S)
            grown.append(server.resident_kb() - before_kb)
        return grown[-1] / (len(crowds) * MEMBERS_OF_A_GROUP / 2)
    finally:
        for crowd in crowds:
            await crowd.disperse()


async def _park(crowd: Crowd) -> None:
    await crowd.grow(MEMBERS_OF_A_GROUP)
    await crowd.start(crowd.members)
    await crowd.all_hold_one_generation()


async def _kb_of_a_connection(server: Server, number: int) -> float:
    connections = []
    grown = 0.0
    for _ in range(2):
        before_kb = server.resident_kb()
        for _ in range(number):
            connections.append(await Connection.open(server.port))
            await connections[-1].post("/", {})
        grown = server.resident_kb() - before_kb
    for connection in connections:
        connection.close()
    return grown / number


def _many(effort: Effort, runner: asyncio.Runner, directory: Path) -> list[Figure]:
    number = effort.times(MANY)
    samples = []
    for turn in range(min(2, effort.repeats)):
        with rota_server(directory, f"sqlite:///{directory / f'many-{turn}.db'}") as ours:
            samples.append(runner.run(_with_many(ours, number)))
    kb, megabytes = transposed(samples)
    what = f"{number:,} idle members, {MEMBERS_OF_A_STREAM} on a stream"
    return [
        Figure("idle", f"memory of each of {what}", "kB", kb, aim=MEMBER_AIM_KB),
        Figure("idle", f"memory of a server with {what}", "MB", megabytes, aim=SERVER_AIM_MB),
    ]


async def _with_many(server: Server, number: int) -> tuple[float, float]:
    """Kilobytes of each, and megabytes of the server with all of them."""
    own_connection = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"{HOST}:{server.grpc_port}", options=own_connection) as channel:
        opened: list[grpc.aio.StreamStreamCall[bytes, bytes]] = []
        before_kb, waves = server.resident_kb(), -(-number // (STREAMS_OF_A_WAVE * MEMBERS_OF_A_STREAM))
        for wave in range(waves):
            opened += await idle_streams(channel, SESSION, f"many-{wave}", STREAMS_OF_A_WAVE, MEMBERS_OF_A_STREAM)
        after_kb = server.resident_kb()
        for stream in opened:
            stream.cancel()
    return (after_kb - before_kb) / (waves * STREAMS_OF_A_WAVE * MEMBERS_OF_A_STREAM), after_kb / 1_000
