"""Postgres goes back to an earlier state under two replicas: a fenced resource sees no token a second time."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from pathlib import Path
from time import monotonic

import httpx
import pytest

from tests.faults.elections import DEADLINE_S, GROUPS, Elections
from tests.support.cluster import Cluster
from tests.support.directories import server_user
from tests.support.postgres import StopMode
from tests.support.processes import Processes

pytestmark = pytest.mark.processes

_WENT_BACK = re.compile(r"^rota_store_went_back_total ([0-9.]+)$", re.MULTILINE)


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
