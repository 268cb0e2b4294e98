"""What a rebalance costs with many members, over streams: one more in a group of 10,000, and 1,000 groups at once."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop

from bench.figures import Effort, Figure, transposed
from bench.servers import Server, bare_grpc_server, rota_server
from bench.stream_members import MemberStream, StreamCrowd, all_agree, open_streams
from bench.streams import as_many_messages
from rota.storage.migrate import upgrade
from tests.support.postgres import PostgresServer

MEMBERS, STREAMS_OF_A_GROUP = 10_000, 10
GROUPS, MEMBERS_OF_EACH, STREAMS = 1_000, 100, 100
GROUPS_AT_ONCE = 20
"""That form side by side, before anything is measured."""
SETTLE_S = 0.5
CPU_AIM_MS, TIME_AIM_S = 500.0, 10.0
_FLOOR = "bare stream, as many messages"


def run(effort: Effort) -> list[Figure]:
    """On Postgres with fsync; the server takes groups that are larger than the default."""
    members, groups = effort.times(MEMBERS), effort.times(GROUPS)
    with (
        tempfile.TemporaryDirectory(prefix="rota-bench-") as name,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        _setting(runner, Path(name), group_max_size=members + 1) as setting,
    ):
        figures = runner.run(_one_group(effort, setting, members))
        return figures + runner.run(_many_groups(effort, setting, groups))


@dataclass(frozen=True, slots=True)
class _Setting:
    server: Server
    postgres: Server
    bare: Server


@contextmanager
def _setting(runner: asyncio.Runner, directory: Path, *, group_max_size: int) -> Iterator[_Setting]:
    limits = {"group_max_size": group_max_size}
    with PostgresServer() as postgres:
        url = postgres.create_database("large")
        runner.run(upgrade(url))
        with rota_server(directory, url, limits=limits) as server, bare_grpc_server(directory) as bare:
            yield _Setting(server, Server(postgres.process.pid, postgres.port), bare)


@dataclass(frozen=True, slots=True)
class _Cost:
    """All in milliseconds; all but `time` of CPU."""

    server: float
    postgres: float
    client: float
    time: float


async def _rebalance(setting: _Setting, crowds: Sequence[StreamCrowd], streams: Sequence[MemberStream]) -> _Cost:
    """One more joins each, until all members of each group hold a share of the same generation."""
    before = _cpu_ms(setting)
    started = time.perf_counter()
    for crowd in crowds:
        crowd.grow(len(crowd.members) + 1)
    await all_agree(crowds, streams)
    server, postgres, client = (after - former for after, former in zip(_cpu_ms(setting), before, strict=True))
    return _Cost(server, postgres, client, (max(crowd.agreed_s for crowd in crowds) - started) * 1_000)


def _cpu_ms(setting: _Setting) -> tuple[float, float, float]:
    return setting.server.cpu_ms(), setting.postgres.cpu_ms(), time.process_time() * 1_000


async def _one_group(effort: Effort, setting: _Setting, members: int) -> list[Figure]:
    samples = []
    async with open_streams(setting.server.grpc_port, STREAMS_OF_A_GROUP) as streams:
        crowd = StreamCrowd("large", streams)
        crowd.grow(members)
        await crowd.all_hold_one_generation()
        for _ in range(effort.repeats):
            await asyncio.sleep(SETTLE_S)
            cost = await _rebalance(setting, [crowd], streams)
            floor_ms = await as_many_messages(setting.bare, len(crowd.members), STREAMS_OF_A_GROUP)
            samples.append((cost.server, cost.postgres, cost.time, floor_ms))
            crowd.members[-1].leave()
            await crowd.all_hold_one_generation()
    server, postgres, taken, floor = transposed(samples)
    what = f"one more joins {members:,} members"
    return [
        Figure("large", f"{what}, server's CPU", "ms", server, aim=CPU_AIM_MS),
        Figure("large", f"{what}, Postgres's CPU", "ms", postgres),
        Figure("large", f"{what}, time", "ms", taken, _FLOOR, floor),
    ]


async def _many_groups(effort: Effort, setting: _Setting, groups: int) -> list[Figure]:
    samples = []
    async with open_streams(setting.server.grpc_port, STREAMS) as streams:
        # Each group begins at another stream, so that the newcomers are spread as well.
        crowds = [StreamCrowd(f"many-{n}", streams[n % STREAMS :] + streams[: n % STREAMS]) for n in range(groups)]
        for first in range(0, groups, GROUPS_AT_ONCE):
            some = crowds[first : first + GROUPS_AT_ONCE]
            for crowd in some:
                crowd.grow(MEMBERS_OF_EACH)
            await all_agree(some, streams)
        for _ in range(min(2, effort.repeats)):
            await asyncio.sleep(SETTLE_S)
            cost = await _rebalance(setting, crowds, streams)
            floor_ms = await as_many_messages(setting.bare, sum(len(crowd.members) for crowd in crowds), STREAMS)
            samples.append([each / 1_000 for each in (cost.server, cost.postgres, cost.client, cost.time, floor_ms)])
    server, postgres, client, taken, floor = transposed(samples)
    what = f"one more joins each of {groups:,} groups of {MEMBERS_OF_EACH} at once"
    return [
        Figure("large", f"{what}, time", "s", taken, _FLOOR, floor, TIME_AIM_S),
        Figure("large", f"{what}, server's CPU", "s", server),
        Figure("large", f"{what}, Postgres's CPU", "s", postgres),
        Figure("large", f"{what}, client's CPU", "s", client),
    ]
