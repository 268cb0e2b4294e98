"""Leaders are killed, stopped and cut off at random moments: nothing that they ran is alive when the next term begins.

Each command writes down all the time that it is alive, and so does its grandchild, which has left session and process
group. Both ignore TERM. The server's journal says when it granted which term: no line may be younger than that.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from rota.protocol.ids import shard_of
from tests.exec.wrappers import Wrappers, guardian_of
from tests.processes.server import SHARD_COUNT, Server
from tests.support.link import Link
from tests.support.processes import Process
from tests.support.reaper import is_alive

pytestmark = pytest.mark.processes

_DEADLINE_S = 60.0

# How often a leader is hurt. `make torture` does it 200 times, or as often as ROTA_EXEC_ROUNDS says.
TORTURE = pytest.param(
    8, int(os.environ.get("ROTA_EXEC_ROUNDS", "200")), marks=[pytest.mark.torture, pytest.mark.slow], id="torture"
)

# Every line is one write, so that lines of several processes do not mix.
ALIVE = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
who = "child"
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        who = "grandchild"
    else:
        os._exit(0)
log = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(1, f"{who} {os.getpid()}\\n".encode())
while True:
    os.write(log, f"{os.environ['ROTA_MEMBER_ID']} {who} {time.time_ns()}\\n".encode())
    time.sleep(0.004)
"""


@dataclass
class Candidate:
    """A `rota lead` with a link of its own to the server."""

    wrapper: Process
    link: Link

    def pids(self) -> list[int]:
        """Those of the command and its grandchild, once it leads and they have said so."""
        return [int(pid) for pid in re.findall(r"^(?:grand)?child (\d+)\n", self.wrapper.output(), re.MULTILINE)]

    def leads(self) -> bool:
        return len(self.pids()) == 2


Fault = Callable[[Candidate, random.Random], None]


def kill_the_wrapper(leader: Candidate, _chance: random.Random) -> None:
    leader.wrapper.send(signal.SIGKILL)


def kill_the_guardian(leader: Candidate, _chance: random.Random) -> None:
    # It is gone already where a busy machine has cost the leader its term.
    with suppress(psutil.NoSuchProcess):
        guardian_of(leader.wrapper).kill()


def stop_the_wrapper(leader: Candidate, _chance: random.Random) -> None:
    leader.wrapper.pause()


def cut_off(leader: Candidate, _chance: random.Random) -> None:
    leader.link.cut()


def stop_the_guardian_and_cut_off(leader: Candidate, _chance: random.Random) -> None:
    guardian_of(leader.wrapper).suspend()
    leader.link.cut()


def cut_off_and_kill_the_wrapper(leader: Candidate, _chance: random.Random) -> None:
    leader.link.cut()
    leader.wrapper.send(signal.SIGKILL)


def stop_and_kill_the_wrapper(leader: Candidate, _chance: random.Random) -> None:
    leader.wrapper.pause()
    leader.wrapper.send(signal.SIGKILL)


FAULTS: tuple[Fault, ...] = (
    kill_the_wrapper,
    kill_the_guardian,
    stop_the_wrapper,
    cut_off,
    stop_the_guardian_and_cut_off,
    cut_off_and_kill_the_wrapper,
    stop_and_kill_the_wrapper,
)


@dataclass
class Lane:
    """One election, with leaders that are hurt one after the other. There is always one more candidate."""

    wrappers: Wrappers
    port: int
    log: Path
    chance: random.Random
    stack: AsyncExitStack
    faults: Counter[str] = field(default_factory=Counter)

    async def run(self, rounds: int) -> None:
        leader = await self._candidate()
        for _ in range(rounds):
            await self._until(leader.leads, leader)
            successor = await self._candidate()
            # Also into the middle of a join phase, of a heartbeat, or of the start of a command.
            await asyncio.sleep(self.chance.uniform(0, 1.5))
            fault = self.chance.choice(FAULTS)
            self.faults[fault.__name__] += 1
            fault(leader, self.chance)
            await self._until(successor.leads, successor)
            left = [pid for pid in leader.pids() if is_alive(pid)]
            assert not left, f"{fault.__name__}: alive in the next term: {left}"
            await self._end(leader, fault)
            leader = successor
        leader.wrapper.send(signal.SIGKILL)
        await self._until(lambda: not any(map(is_alive, leader.pids())), None)

    async def _candidate(self) -> Candidate:
        link = await self.stack.enter_async_context(Link(self.port))
        wrapper = self.wrappers.lead(sys.executable, "-c", ALIVE, self.log, url=link.url)
        return Candidate(wrapper, link)

    async def _end(self, leader: Candidate, fault: Fault) -> None:
        """A stopped process goes on, and must find out by itself."""
        leader.link.heal()
        if fault is stop_the_wrapper:
            leader.wrapper.resume()
            await self._until(lambda: not leader.wrapper.running, None)
            assert leader.wrapper.exit_code == 74
        leader.wrapper.kill9()

    async def _until(self, ready: Callable[[], bool], candidate: Candidate | None) -> None:
        async with asyncio.timeout(_DEADLINE_S):
            while not ready():
                assert candidate is None or candidate.wrapper.running, candidate.wrapper.output()
                await asyncio.sleep(0.02)


@pytest.mark.parametrize(("lanes", "rounds"), [pytest.param(5, 10, marks=pytest.mark.slow), TORTURE])
async def test_all_is_dead_before_the_next_term_is_granted(
    shared_server: Server, wrappers: Wrappers, tmp_path: Path, lanes: int, rounds: int
) -> None:
    seed = int(os.environ.get("ROTA_SEED") or random.SystemRandom().randrange(2**32))
    print(f"ROTA_SEED={seed}")
    wrappers = wrappers.soon_lost()
    async with AsyncExitStack() as stack:
        running = [
            Lane(
                wrappers.soon_lost().of(f"{n}"),
                shared_server.port,
                tmp_path / f"log-{n}",
                random.Random(seed + n),
                stack,
            )
            for n in range(lanes)
        ]
        async with asyncio.TaskGroup() as tasks:
            for lane in running:
                tasks.create_task(lane.run(rounds // lanes))

    slack_ms: list[float] = []
    for lane in running:
        slack_ms += slacks_ms(lane.log, await changes_of_leader(shared_server.url, lane.wrappers.group_id))
    slack_ms.sort()
    least_ms, median_ms = slack_ms[0], slack_ms[len(slack_ms) // 2]
    print(f"{len(slack_ms)} terms: all was dead at least {least_ms:.0f} ms before the next (median {median_ms:.0f} ms)")
    print(dict(sum((lane.faults for lane in running), Counter[str]())))
    assert len(slack_ms) == rounds // lanes * lanes
    assert min(slack_ms) > 0, f"{sum(slack < 0 for slack in slack_ms)} of {len(slack_ms)} outlived their term"


async def changes_of_leader(url: str, group_id: str) -> list[tuple[str, str, float]]:
    """Former leader, next leader, and when the server decided so, in milliseconds since 1970."""
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        journal = await read_journal(http, shard_of("default", group_id, SHARD_COUNT))
    terms = [
        (event["payload"]["leader_id"], event["at_ms"])
        for event in journal
        if event["group_id"] == group_id and event["kind"] == "generation_completed"
    ]
    pairs = pairwise(terms)
    return [(former, leader, at_ms) for (former, _), (leader, at_ms) in pairs if former != leader]


async def read_journal(http: httpx.AsyncClient, shard_id: int) -> list[dict[str, Any]]:
    """The whole journal of a shard, as the server returns it."""
    events: list[dict[str, Any]] = []
    while True:
        after = events[-1]["revision"] if events else 0
        answer = await http.get("/v1/events", params={"shard": shard_id, "after": after, "limit": 1_000})
        if not (page := answer.raise_for_status().json()["events"]):
            return events
        events += page


def slacks_ms(log: Path, changes: list[tuple[str, str, float]]) -> list[float]:
    """For each term that ended, the time from the last sign of life in it to the grant of the next."""
    last_ms: dict[str, float] = {}
    for member_id, _, at_ns in map(str.split, log.read_text().splitlines()):
        last_ms[member_id] = max(last_ms.get(member_id, 0), int(at_ns) / 1e6)
    return [at_ms - last_ms[former] for former, _, at_ms in changes if former in last_ms]


def test_the_check_finds_who_outlives_its_term(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("a child 1000000000\na grandchild 2500000000\nb child 9000000000\n")
    changes: list[tuple[str, str, Any]] = [("a", "b", 2_000), ("b", "c", 9_100)]

    assert slacks_ms(log, changes) == [-500, 100]
