"""How long the work on a partition pauses when one more member joins: of those that stay, and of those that move."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import rota
from bench.figures import Effort, Figure, transposed
from bench.servers import Server, rota_server
from bench.setting import HOST
from rota.client import Client, Consumer, TopicPartition

STRATEGIES = ("cooperative-sticky", "sticky")
"""The second is eager: all is given up at each rebalance."""
MEMBERS = 4
PARTITIONS = 60
TICK_S = 0.001
"""How often there is something to do on each partition."""
REST_S = 1.0
DEADLINE_S = 30.0
FLOOR = "the longest at rest"


def run(effort: Effort) -> list[Figure]:
    """The SDK over HTTP, all members on one event loop: what that one is late counts as a pause, at rest as well."""
    figures = []
    with tempfile.TemporaryDirectory(prefix="rota-bench-") as name, asyncio.Runner() as runner:
        with rota_server(Path(name), f"sqlite:///{Path(name) / 'rota.db'}") as server:
            for strategy in STRATEGIES:
                turns = [runner.run(_one_more_joins(server, strategy, turn)) for turn in range(effort.repeats)]
                staying, moving, rest = transposed(turns)
                case = f"one more joins {MEMBERS} members, {strategy}"
                figures += [
                    Figure("pauses", f"{case}: longest pause of a partition that stays", "ms", staying, FLOOR, rest),
                    Figure("pauses", f"{case}: longest pause of a partition that moves", "ms", moving, FLOOR, rest),
                ]
    return figures


@dataclass
class Work:
    """When each partition was worked on last, and the longest that it had to wait for it."""

    last: dict[TopicPartition, float] = field(default_factory=dict)
    longest: dict[TopicPartition, float] = field(default_factory=dict)

    async def on(self, consumer: Consumer) -> None:
        while True:
            now = time.perf_counter()
            for place in consumer.assignment or ():
                self.longest[place] = max(self.longest.get(place, 0.0), now - self.last.get(place, now))
                self.last[place] = now
            await asyncio.sleep(TICK_S)

    def longest_ms(self, places: Sequence[TopicPartition]) -> float:
        return max(self.longest[place] for place in places) * 1_000


async def _one_more_joins(server: Server, strategy: str, turn: int) -> tuple[float, float, float]:
    """Milliseconds: the longest pause of what stays, of what moves, and of all at rest."""
    work = Work()
    async with rota.connect(f"http://{HOST}:{server.port}") as client, AsyncExitStack() as stack:
        members: list[Consumer] = []
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        working: list[asyncio.Task[None]] = []
        stack.callback(lambda: [task.cancel() for task in working])

        async def start() -> None:
            members.append(await stack.enter_async_context(_consumer(client, f"{strategy}-{turn}", strategy)))
            working.append(tasks.create_task(work.on(members[-1])))

        for _ in range(MEMBERS):
            await start()
        await _until(lambda: _are_even(members))
        await asyncio.sleep(REST_S)
        work.longest.clear()
        await asyncio.sleep(REST_S)
        rest_ms, before = work.longest_ms([*work.longest]), _holders(members)
        work.longest.clear()
        await start()
        await _until(lambda: _are_even(members))
        await asyncio.sleep(REST_S)
        after = _holders(members)
        staying = [place for place in before if after[place] == before[place]]
        moving = [place for place in before if after[place] != before[place]]
        return work.longest_ms(staying), work.longest_ms(moving), rest_ms


def _consumer(client: Client, group_id: str, strategy: str) -> Consumer:
    return client.consumer(group_id, {"work": PARTITIONS}, strategy)


def _holders(members: Sequence[Consumer]) -> dict[TopicPartition, int]:
    return {place: number for number, member in enumerate(members) for place in member.assignment or ()}


def _are_even(members: Sequence[Consumer]) -> bool:
    return [len(member.assignment or ()) for member in members] == [PARTITIONS // len(members)] * len(members)


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not is_so():  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(TICK_S)
