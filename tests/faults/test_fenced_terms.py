"""Owners that are paused, and clocks that are set: a fenced resource sees one holder a term, and no token goes back.

A history checker stands beside the resource: once a term has begun, no fence check and no commit of an earlier term
that is sent from then on may pass, at any replica.

Postgres' clock is stepped for Rota's own statements: a function of the same name stands before the true one in the
search path. The wall clock of a replica is stepped in its process (`tests/support/stepped_clock`).
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from time import monotonic
from typing import TypeAlias

import httpx
import pytest

from rota.protocol.fencing_token import generation_of
from rota.protocol.ids import shard_of
from tests.faults.elections import GROUPS, Elections, Grant, until
from tests.support.cluster import LEASE_MS, Cluster, ReplicaProcess
from tests.support.processes import Processes

pytestmark = pytest.mark.processes

NAMES = ("r1", "r2")
GROUP = "busy"
AT_ONCE = 6
"""How many checks, and as many commits, are under way at a time."""
A_DAY_S = 86_400.0
DATE_IS_LATE_S = 30.0
STEPPED_CLOCK = Path(__file__).parents[1] / "support" / "stepped_clock"
CLOCK_THAT_STEPS = """
CREATE SCHEMA stepped;
CREATE TABLE stepped.ahead AS SELECT interval '0' AS by;
CREATE FUNCTION stepped.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
    'SELECT pg_catalog.clock_timestamp() + by FROM stepped.ahead';
ALTER DATABASE rota SET search_path = stepped, pg_catalog, public
"""


@dataclass(slots=True)
class Checker:
    """Asks replicas in the name of terms, and compares the answers with the terms that had begun by then."""

    http: httpx.AsyncClient
    grants: list[Grant]
    sent: int = 0
    passed: int = 0
    refused: int = 0
    violations: list[str] = field(default_factory=list)

    async def ask(self, url: str, term: Grant, *, commits: bool = True) -> None:
        """Check the fence several times at once, and commit as often. A commit shows a former owner that it is none."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(AT_ONCE):
                tasks.create_task(self._fence(url, term))
                if commits:
                    tasks.create_task(self._commit(url, term, number))

    @asynccontextmanager
    async def waiting(self, url: str, term: Grant, *, commits: bool) -> AsyncIterator[None]:
        """While the block runs, checks and commits wait in the sockets of a replica that is paused."""
        wanted = self.sent + AT_ONCE * (1 + commits)
        asked = asyncio.create_task(self.ask(url, term, commits=commits))
        await until(lambda: self.sent >= wanted)
        yield
        await asked

    async def keep_asking(self, url: str) -> None:
        """Check the fences of the last terms until this is cancelled. It has the owner write nothing: an owner that
        writes would find out that it is none.
        """
        while True:
            for term in self.grants[-3:]:
                await self._fence(url, term)
            await asyncio.sleep(0.01)

    async def _fence(self, url: str, term: Grant) -> None:
        body = {"fencing_token": term.token, "member_id": term.member_id}
        await self._post(url, "fence", body, term)

    async def _commit(self, url: str, term: Grant, number: int) -> None:
        offsets = [{"topic": "lines", "partition": number, "offset": term.token}]
        generation_id = generation_of(term.token)
        body = {"member_id": term.member_id, "generation_id": generation_id, "offsets": offsets}
        await self._post(url, "offsets", body, term)

    async def _post(self, url: str, call: str, body: dict[str, object], term: Grant) -> None:
        later = max(self.grants, key=lambda grant: grant.token)
        target = f"{url}/v1/namespaces/default/groups/{GROUP}/{call}"
        try:
            answer = await self.http.post(target, json=body, extensions={"trace": self._note_sent})
        except httpx.TransportError:
            return
        self.passed += answer.is_success
        self.refused += not answer.is_success
        if answer.is_success and later.token > term.token:
            self.violations.append(f"{call} of {term} passed at {url}, although {later} had begun when it was sent")

    async def _note_sent(self, step: str, _info: object) -> None:
        self.sent += step == "http11.send_request_body.complete"


@dataclass(slots=True)
class Stage:
    """A cluster of two replicas with clocks that can be set, with elections on it."""

    cluster: Cluster
    elections: Elections
    checker: Checker
    chance: random.Random
    wall_clocks: Path

    @property
    def term(self) -> Grant:
        return self.elections.resources[GROUP].grants[-1]

    def owner(self) -> ReplicaProcess:
        return owner_of(self.cluster)

    async def next_term(self) -> None:
        """Another candidate leads; the former term passes nowhere any more, the new one does somewhere."""
        former = self.term
        await self.elections.pass_the_lead(GROUP)
        for url in self.cluster.urls:
            await self.checker.ask(url, former)
            await self.checker.ask(url, self.term)

    def step_database(self) -> None:
        by_s = self.chance.uniform(0.2, 4) * LEASE_MS / 1000 * self.chance.choice((1, -1))
        self.cluster.postgres.execute(
            f"UPDATE stepped.ahead SET by = by + make_interval(secs => {by_s})", database="rota"
        )

    def step_wall_clock(self, replica: ReplicaProcess) -> None:
        ahead_s = self.chance.choice((1, 60, A_DAY_S)) * self.chance.uniform(-1, 1)
        (self.wall_clocks / replica.name).write_text(str(int(ahead_s * 1e9)))

    async def check_wall_clock(self, replica: ReplicaProcess) -> None:
        """The replica's clock is what the test has set: its answers show it."""
        date = (await self.checker.http.get(f"{replica.url}/healthz")).headers["date"]
        ahead_s = int((self.wall_clocks / replica.name).read_text()) / 1e9
        assert abs(parsedate_to_datetime(date).timestamp() - time.time() - ahead_s) < DATE_IS_LATE_S


def owner_of(cluster: Cluster) -> ReplicaProcess:
    return cluster.replicas[cluster.owners()[shard_of("default", GROUP, cluster.shard_count)]]


async def pause_the_owner(stage: Stage) -> None:
    """The owner is paused beyond its lease, with checks and commits under way and others that wait in its sockets. It
    goes on when another term has begun.
    """
    owner, former = await asyncio.to_thread(stage.owner), stage.term
    commits = stage.chance.random() < 0.5
    async with asyncio.TaskGroup() as under_way:
        sent = stage.checker.sent
        under_way.create_task(stage.checker.ask(owner.url, former, commits=commits))
        await until(lambda: stage.checker.sent > sent)
        owner.process.pause()
        await stage.cluster.until_moved(owner.name)
        await stage.elections.pass_the_lead(GROUP)
        async with stage.checker.waiting(owner.url, former, commits=commits):
            owner.process.resume()


async def step_the_databases_clock(stage: Stage) -> None:
    """Under the owner, while terms follow each other through the other replica; then while the owner is paused."""
    await asyncio.to_thread(stage.step_database)
    await stage.elections.pass_the_lead(GROUP, 3)
    await stage.next_term()
    owner = await asyncio.to_thread(stage.owner)
    owner.process.pause()
    await asyncio.to_thread(stage.step_database)
    await asyncio.sleep(LEASE_MS / 1000)
    async with stage.checker.waiting(owner.url, stage.term, commits=stage.chance.random() < 0.5):
        owner.process.resume()
    await stage.next_term()


async def step_a_wall_clock(stage: Stage) -> None:
    """Of the owner that runs, and then before it is started again after a crash."""
    owner = await asyncio.to_thread(stage.owner)
    stage.step_wall_clock(owner)
    await stage.next_term()
    owner.kill9()
    stage.step_wall_clock(owner)
    owner.start()
    await stage.cluster.until_settled()
    await stage.check_wall_clock(owner)
    await stage.next_term()


Hurt: TypeAlias = Callable[[Stage], Awaitable[None]]
HURTS: tuple[Hurt, ...] = (pause_the_owner, step_the_databases_clock, step_a_wall_clock)


@asynccontextmanager
async def staged(processes: Processes, tmp_path: Path, seed: int) -> AsyncIterator[Stage]:
    """All candidates reach the elections through the replica that does not own them, as long as it does not."""
    env = {name: {"PYTHONPATH": str(STEPPED_CLOCK), "STEPPED_CLOCK": str(tmp_path / name)} for name in NAMES}
    for name in NAMES:
        (tmp_path / name).write_text("0")
    async with (
        Cluster(processes, names=NAMES, prepare=CLOCK_THAT_STEPS, env=env) as cluster,
        httpx.AsyncClient(trust_env=False, timeout=30.0) as http,
    ):
        owner = await asyncio.to_thread(owner_of, cluster)
        elections = Elections([url for url in cluster.urls if url != owner.url])
        async with elections.running():
            await asyncio.gather(*(elections.until_granted(group, 1) for group in GROUPS))
            checker = Checker(http, elections.resources[GROUP].grants)
            async with asking(checker, cluster.urls):
                yield Stage(cluster, elections, checker, random.Random(seed), tmp_path)


@asynccontextmanager
async def asking(checker: Checker, urls: list[str]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(checker.keep_asking(url)) for url in urls]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def play(stage: Stage, hurts: tuple[Hurt, ...]) -> None:
    for hurt in hurts:
        began_s = monotonic()
        await hurt(stage)
        await stage.cluster.until_settled()
        print(f"{hurt.__name__}: {monotonic() - began_s:.1f} s")
    checker, resources = stage.checker, stage.elections.resources
    terms, writes = len(resources[GROUP].grants), sum(each.writes for each in resources.values())
    print(f"{terms} terms, {writes} writes, {checker.passed} checks and commits passed, {checker.refused} did not")
    assert stage.elections.violations() == []
    assert checker.violations == []
    assert min(checker.passed, checker.refused) > 0
    stage.cluster.verify()


@pytest.mark.slow
async def test_one_holder_a_term_when_an_owner_or_a_clock_fails(
    processes: Processes, tmp_path: Path, seed: int
) -> None:
    async with staged(processes, tmp_path, seed) as stage:
        await play(stage, HURTS)


@pytest.mark.slow
@pytest.mark.parametrize("hurt", HURTS, ids=lambda hurt: hurt.__name__)
async def test_one_holder_a_term_in_many_rounds(processes: Processes, tmp_path: Path, seed: int, hurt: Hurt) -> None:
    async with staged(processes, tmp_path, seed) as stage:
        await play(stage, (hurt,) * int(os.environ.get("ROTA_ROUNDS", "20")))
