"""How long a group takes to agree over streams: when one more joins, when its leader crashes, and when it leaves."""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from statistics import median

import asyncpg
import uvloop

from bench.bare_grpc import STREAM
from bench.figures import Effort, Figure, transposed
from bench.servers import ROOT, Server, bare_grpc_server, rota_server
from bench.setting import HOST
from bench.stream_members import METADATA, StreamCrowd, open_streams
from rota.storage.migrate import upgrade
from tests.support.postgres import PostgresServer
from tests.support.processes import Process

SIZES = (10, 100, 500)
STREAMS = 10
"""Over which the members are spread, as over so many processes."""
JOIN_AIM_MS = 100.0
CRASH_AIM_MS = 6.0
HAND_OVER_AIM_MS = 2.0
HAND_OVERS, CRASHES = 20, 3
SETTLE_S = 0.2
MESSAGES_OF_A_MEMBER = 2
"""The join and the sync. That a rebalance began is pushed, so the floor's answers are as many as ours."""


def run(effort: Effort) -> list[Figure]:
    """On Postgres, durably, and without fsync to see the disk's part."""
    with tempfile.TemporaryDirectory(prefix="rota-bench-") as name:
        directory = Path(name)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            figures = []
            for durable, what in ((True, "Postgres"), (False, "Postgres without fsync")):
                with PostgresServer(durable=durable) as postgres:
                    store_url, floor_url = postgres.create_database("streams"), postgres.dsn()
                    runner.run(upgrade(store_url))
                    with rota_server(directory, store_url) as ours, bare_grpc_server(directory) as bare:
                        figures += runner.run(_joins(effort, ours, bare, what))
                        figures += runner.run(_leaders(effort, ours, floor_url, directory, what))
    return figures


# --- one more joins -------------------------------------------------------------------------------------


async def _joins(effort: Effort, ours: Server, bare: Server, what: str) -> list[Figure]:
    figures = []
    for size in SIZES:
        samples = []
        for turn in range(effort.repeats):
            above = await _one_more_joins(f"joins-{size}-{turn}", ours, size)
            samples.append((above, await as_many_messages(bare, size + 1, STREAMS)))
        milliseconds, floor = transposed(samples)
        name = f"one more joins {size} members, {what}"
        aim = JOIN_AIM_MS if size == max(SIZES) else None
        figures.append(Figure("streams", name, "ms", milliseconds, "bare stream, as many messages", floor, aim))
    return figures


async def _one_more_joins(group_id: str, server: Server, size: int) -> float:
    """From the newcomer's first message until all members hold a share of the same generation."""
    async with open_streams(server.grpc_port, STREAMS) as streams:
        crowd = StreamCrowd(group_id, streams)
        crowd.grow(size)
        await crowd.all_hold_one_generation()
        await asyncio.sleep(SETTLE_S)
        started = time.perf_counter()
        crowd.grow(size + 1)
        await crowd.all_hold_one_generation()
        return (crowd.agreed_s - started) * 1_000


async def as_many_messages(server: Server, members: int, count: int) -> float:
    """Milliseconds of what so many members send, over `count` streams, to a server that sends it back at once."""
    async with open_streams(server.grpc_port, count, path=STREAM) as streams:
        share, rest = divmod(MESSAGES_OF_A_MEMBER * members, count)
        started = time.perf_counter()
        echoes = [stream.echo(METADATA * 3, share + (n < rest)) for n, stream in enumerate(streams)]
        await asyncio.gather(*echoes)
        return (time.perf_counter() - started) * 1_000


# --- another one leads ----------------------------------------------------------------------------------


async def _leaders(effort: Effort, server: Server, floor_url: str, directory: Path, what: str) -> list[Figure]:
    crashes, leaves = [], []
    for turn in range(effort.repeats):
        floor = await _a_commit(floor_url)
        leaves.append((await _hand_overs(f"leaves-{turn}", server, effort.times(HAND_OVERS)), floor))
        floor = await _a_commit(floor_url)
        crashed = [await _a_crash(f"crashes-{turn}-{n}", server, directory) for n in range(effort.times(CRASHES))]
        led_ms, ended_ms = (median(each) for each in zip(*crashed, strict=True))
        crashes.append((led_ms, ended_ms + floor))
    floor_name = "a commit, asyncpg"
    crash_ms, crash_floor = transposed(crashes)
    leave_ms, leave_floor = transposed(leaves)
    crash = f"kill -9 of an election's leader to the next one leading, {what}"
    leave = f"the leader of an election leaves, {what}"
    return [
        Figure("streams", crash, "ms", crash_ms, f"a TCP connection's end, {floor_name}", crash_floor, CRASH_AIM_MS),
        Figure("streams", leave, "ms", leave_ms, floor_name, leave_floor, HAND_OVER_AIM_MS),
    ]


async def _hand_overs(group_id: str, server: Server, times: int) -> float:
    """The median of so many, from the leader's message until the other one has its answer as the leader."""
    async with open_streams(server.grpc_port, 2) as streams:
        crowd = StreamCrowd(group_id, streams, is_election=True)
        taken = []
        for _ in range(times):
            crowd.grow(2)
            await crowd.all_hold_one_generation()
            leader = next(member for member in crowd.members if member.leads)
            started = time.perf_counter()
            leader.leave()
            await crowd.all_hold_one_generation()
            taken.append((crowd.agreed_s - started) * 1_000)
            assert crowd.members[0].leads
        return median(taken)


async def _a_crash(group_id: str, server: Server, directory: Path) -> tuple[float, float]:
    """Until the next one leads, and until a plain connection of the same process ends: its kernel frees memory first.

    The leader is another process; its members leave when its stream is lost.
    """
    ended = asyncio.get_running_loop().create_future()
    listener = await asyncio.get_running_loop().create_server(lambda: _Ending(ended), HOST)
    port = listener.sockets[0].getsockname()[1]
    command: list[str | Path] = [sys.executable, "-m", "bench.leading", str(server.grpc_port), group_id, str(port)]
    with closing(listener), Process(command, directory / f"{group_id}.log", cwd=ROOT) as leader:
        await asyncio.to_thread(leader.wait_for_line, "leads")
        async with open_streams(server.grpc_port, 1) as streams:
            crowd = StreamCrowd(group_id, streams, is_election=True)
            crowd.grow(1)
            await crowd.all_hold_one_generation()
            await asyncio.sleep(SETTLE_S)
            crowd.expect_news()
            started = time.perf_counter()
            leader.send(signal.SIGKILL)
            await crowd.all_hold_one_generation()
            taken_ms = (crowd.agreed_s - started) * 1_000
            assert crowd.members[0].leads
            return taken_ms, (await ended - started) * 1_000


class _Ending(asyncio.Protocol):
    """Tells when its connection has ended."""

    def __init__(self, ended: asyncio.Future[float]) -> None:
        self._ended = ended

    def connection_lost(self, _error: Exception | None) -> None:
        self._ended.set_result(time.perf_counter())


async def _a_commit(url: str) -> float:
    """Milliseconds, the median of some."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("CREATE TABLE IF NOT EXISTS floor (at bigint)")
        insert = await connection.prepare("INSERT INTO floor VALUES ($1)")
        taken = []
        for _ in range(HAND_OVERS):
            started = time.perf_counter()
            await insert.fetch(1)
            taken.append((time.perf_counter() - started) * 1_000)
        return median(taken)
    finally:
        await connection.close()
