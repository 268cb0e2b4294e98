"""Postgres goes back to an earlier state under two replicas: a fenced resource sees no token a second time."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import httpx
import pytest

from rota.client import Client, Term, connect
from tests.support.cluster import Cluster
from tests.support.directories import server_user
from tests.support.postgres import StopMode
from tests.support.processes import Processes

pytestmark = pytest.mark.processes

DEADLINE_S = 60.0
SESSION_MS = 6_000
ASK_AGAIN_S = 5.0
GROUPS = ("busy", "quiet")
CANDIDATES = 3
_WENT_BACK = re.compile(r"^rota_store_went_back_total ([0-9.]+)$", re.MULTILINE)


@dataclass(slots=True)
class Resource:
    """A user's own data, which takes no token that is older than one that it has seen, and who wrote with each."""

    highest: int = 0
    holders: dict[int, str] = field(default_factory=dict)
    grants: list[tuple[float, int, str]] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def note_grant(self, token: int, holder: str) -> None:
        """A term begins."""
        if token <= max((former for _, former, _ in self.grants), default=0):
            self.violations.append(f"{holder} was granted {token} after {self.grants}")
        self.grants.append((monotonic(), token, holder))

    def write(self, token: int, holder: str) -> None:
        if token < self.highest:
            return
        self.highest = token
        if self.holders.setdefault(token, holder) != holder:
            self.violations.append(f"{holder} writes with {token} as {self.holders[token]} did")


class Elections:
    """Candidates of two groups, each of which writes to its group's resource for as long as it leads."""

    def __init__(self, urls: list[str]) -> None:
        self.urls = urls
        self.resources = {group: Resource() for group in GROUPS}
        self._clients: list[Client] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
            self.admin = await stack.enter_async_context(connect(self.urls))
            running = [
                tasks.create_task(self._campaign(group, f"{group}-{number}"))
                for group in GROUPS
                for number in range(CANDIDATES)
            ]
            try:
                yield
            finally:
                for task in running:
                    task.cancel()

    async def _campaign(self, group: str, name: str) -> None:
        resource = self.resources[group]

        async def write(term: Term) -> None:
            resource.note_grant(term.token, name)
            while not term.lost.is_set():
                resource.write(term.token, name)
                await asyncio.sleep(0.02)

        async with connect(self.urls, client_id=name) as client:
            async with client.leader(group, session_timeout_ms=SESSION_MS) as election:
                await election.run(write)

    async def pass_the_lead(self, group: str, times: int = 1) -> None:
        """Other candidates lead, one after the other. An owner that loses its shard forgets that it was asked."""
        grants = self.resources[group].grants
        for _ in range(times):
            await self.until_complete(group)
            wanted = len(grants) + 1
            while len(grants) < wanted:
                await self.admin.rebalance_group(group, "the test asks for it", step_down=True)
                with suppress(TimeoutError):
                    async with asyncio.timeout(ASK_AGAIN_S):
                        await self.until_granted(group, wanted)

    async def until_complete(self, group: str) -> None:
        """All candidates are in the generation: one that is alone is not passed over."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                found = await self.admin.describe_group(group)
                if found.state == "Stable" and len(found.members) == CANDIDATES:
                    return
                await asyncio.sleep(0.02)

    async def until_granted(self, group: str, times: int) -> float:
        """When a term of the group began for so many times."""
        grants = self.resources[group].grants
        await until(lambda: len(grants) >= times)
        return grants[times - 1][0]

    def violations(self) -> list[str]:
        return [f"{group}: {each}" for group, resource in self.resources.items() for each in resource.violations]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0.01)


async def until_alerted(urls: list[str]) -> float:
    """When the first replica counts that the store went back."""
    async with httpx.AsyncClient(trust_env=False, timeout=5.0) as http, asyncio.timeout(DEADLINE_S):
        while True:
            for url in urls:
                found = _WENT_BACK.search((await http.get(f"{url}/metrics")).text)
                if found is not None and float(found[1]) > 0:
                    return monotonic()
            await asyncio.sleep(0.01)


def keep(cluster: Cluster, backup: Path) -> None:
    """A copy of the data directory, as of now."""
    cluster.postgres.stop()
    shutil.copytree(cluster.postgres.data_directory, backup, symlinks=True)
    cluster.postgres.start()


def go_back(cluster: Cluster, backup: Path, *, fails_over: bool) -> None:
    """Postgres is killed, and comes back with the copy: as a standby that was behind, on a timeline of its own, where
    it `fails_over`.
    """
    cluster.postgres.stop(StopMode.IMMEDIATE)
    data = cluster.postgres.data_directory
    shutil.rmtree(data)
    shutil.copytree(backup, data, symlinks=True)
    if fails_over:
        (data / "recovery.signal").touch()
        with (data / "postgresql.auto.conf").open("a") as settings:
            settings.write("restore_command = 'false'\n")
    if server_user() is not None:
        for path in (data, *data.rglob("*")):
            os.chown(path, server_user() or -1, -1, follow_symlinks=False)
    data.chmod(0o700)
    cluster.postgres.start()


async def take_back(cluster: Cluster, elections: Elections, backup: Path, *, fails_over: bool) -> tuple[float, float]:
    """Let tokens grow, take the store back behind them; returns how long the first alert and the first grants took."""
    await elections.pass_the_lead("quiet", 2)
    await elections.pass_the_lead("busy", 4)
    before = {group: len(resource.grants) for group, resource in elections.resources.items()}
    await asyncio.to_thread(go_back, cluster, backup, fails_over=fails_over)
    began = monotonic()
    alerted = await until_alerted(elections.urls)
    granted = [await elections.until_granted(group, times + 1) for group, times in before.items()]
    return alerted - began, max(granted) - began


@pytest.mark.thorough
@pytest.mark.parametrize("fails_over", [False, True], ids=["a backup is restored", "a standby was behind"])
async def test_no_token_comes_twice_when_postgres_goes_back(
    processes: Processes, tmp_path: Path, fails_over: bool
) -> None:
    for number in range(int(os.environ.get("ROTA_ROUNDS", "1"))):
        async with Cluster(processes, names=("r1", "r2")) as cluster:
            elections = Elections(cluster.urls)
            async with elections.running():
                await asyncio.gather(*(elections.until_granted(group, 1) for group in GROUPS))
                backup = tmp_path / f"backup-{number}"
                await asyncio.to_thread(keep, cluster, backup)
                await cluster.until_settled()
                alerted_s, granted_s = await take_back(cluster, elections, backup, fails_over=fails_over)
                await elections.pass_the_lead("busy")
                await cluster.until_settled()
            print(f"first alert {alerted_s:.2f} s, first grants {granted_s:.2f} s")
            assert elections.violations() == []
            cluster.verify()
