"""How long a group takes to agree over HTTP: when it forms, when one more joins, when one leaves."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

import uvloop

from bench.connection import Connection
from bench.figures import Effort, Figure, transposed
from bench.members import METADATA, Crowd
from bench.servers import Server, bare_server, rota_server
from bench.setting import WAIT_MS
from rota.storage.migrate import upgrade
from tests.support.postgres import PostgresServer

SIZES = (10, 100, 500)
CHANGES = 5
"""How often one more joins a group and leaves again. The first time is slower, as much of the server is cold."""
SETTLE_S = 0.3
"""For the last heartbeats to be parked again before the next event."""
FLOOR = "bare uvicorn, as many messages"
MESSAGES_OF_A_MEMBER = 3
"""The parked heartbeat that is answered, the join and the sync."""


def run(effort: Effort) -> list[Figure]:
    """All members wait in a long poll, so the times are those of the service and its store, not of an interval."""
    with tempfile.TemporaryDirectory(prefix="rota-bench-") as name, PostgresServer() as postgres:
        directory = Path(name)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            store_url = postgres.create_database("rebalance")
            runner.run(upgrade(store_url))
            figures = _on(effort, runner, directory, f"sqlite:///{directory / 'rota.db'}", "SQLite")
            figures += _on(effort, runner, directory, store_url, "Postgres")
    return figures


def _on(effort: Effort, runner: asyncio.Runner, directory: Path, store_url: str, store: str) -> list[Figure]:
    figures = []
    with rota_server(directory, store_url) as ours, bare_server(directory) as bare:
        for size in SIZES:
            samples = []
            for turn in range(effort.repeats):
                lived = runner.run(_life_of_a_group(f"{store}-{size}-{turn}", ours, size))
                samples.append((*lived, *runner.run(_as_many_messages(bare, size))))
            forming, joining, leaving, cpu, floor, floor_cpu = transposed(samples)
            figures += [
                Figure("rebalance", f"{size} members form a group, its initial delay included, {store}", "ms", forming),
                Figure("rebalance", f"one more joins {size} members, {store}", "ms", joining, FLOOR, floor),
                Figure("rebalance", f"one leaves {size} members, {store}", "ms", leaving, FLOOR, floor),
                Figure("rebalance", f"server CPU of a message, {size} members, {store}", "ms", cpu, FLOOR, floor_cpu),
            ]
    return figures


async def _life_of_a_group(group_id: str, server: Server, size: int) -> tuple[float, float, float, float]:
    """Milliseconds to form, to take one more in, to go on without it; and of the server's CPU for each message.

    Those of joining and leaving are medians.
    """
    before_ms = server.cpu_ms()
    crowd = Crowd(group_id, server.port)
    joining, leaving = [], []
    await crowd.grow(size)
    try:
        forming = await _until_agreed(crowd, lambda: crowd.start(crowd.members))
        for _ in range(CHANGES):
            await crowd.grow(size + 1)
            joining.append(await _until_agreed(crowd, lambda: crowd.start(crowd.members[-1:])))
            leaving.append(await _until_agreed(crowd, crowd.last_leaves))
        cpu_ms = (server.cpu_ms() - before_ms) / crowd.messages
        return forming, median(joining), median(leaving), cpu_ms
    finally:
        await crowd.disperse()


async def _until_agreed(crowd: Crowd, event: Callable[[], Awaitable[None]]) -> float:
    started = time.perf_counter()
    await event()
    await crowd.all_hold_one_generation()
    milliseconds = (time.perf_counter() - started) * 1_000
    await asyncio.sleep(SETTLE_S)
    return milliseconds


async def _as_many_messages(server: Server, size: int) -> tuple[float, float]:
    """Milliseconds of the same client with as many messages to a server that does nothing, and of CPU for each."""
    before_ms = server.cpu_ms()
    connections = [await Connection.open(server.port) for _ in range(size + 1)]
    document = {"member_id": "x" * 42, "protocols": [{"name": "range", "metadata": METADATA}], "wait_ms": WAIT_MS}

    async def exchange(connection: Connection) -> None:
        for _ in range(MESSAGES_OF_A_MEMBER):
            await connection.post("/", document)

    started = time.perf_counter()
    await asyncio.gather(*map(exchange, connections))
    milliseconds = (time.perf_counter() - started) * 1_000
    for connection in connections:
        connection.close()
    return milliseconds, (server.cpu_ms() - before_ms) / (len(connections) * MESSAGES_OF_A_MEMBER)
