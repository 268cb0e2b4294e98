"""kill -9 of the server at random moments, under load: nothing that was acknowledged is lost or contradicted."""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import pytest

from tests.faults.load import Crowd, Load
from tests.faults.verdict import Verdict, judge
from tests.processes.server import SHARD_COUNT, Server
from tests.support.processes import Processes
from tests.support.torture import Row, add_row, rounds

pytestmark = pytest.mark.processes

FACTS_PER_ROUND = (20, 250)
LEASE_MS = 1_000
CROWD = Crowd(session_ms=10_000, churn_s=3.0)

# How often the server is killed; None: for its share of the time that `make torture` takes.
TORTURE = pytest.param(None, marks=pytest.mark.torture, id="torture")
SHARE = 0.3


@dataclass(slots=True)
class Stored:
    """The store of a server, as a verdict needs it."""

    dsn: str
    shard_count: int = SHARD_COUNT
    lease_ms: int = LEASE_MS


def seed() -> int:
    """`ROTA_SEED` repeats the choices of a run, though not the scheduling of its processes."""
    return int(os.environ.get("ROTA_SEED") or random.SystemRandom().randrange(2**32))


@pytest.mark.parametrize("kills", [pytest.param(2, marks=pytest.mark.thorough), TORTURE])
async def test_a_killed_server_on_sqlite_loses_nothing_acknowledged(
    processes: Processes, tmp_path: Path, kills: int | None
) -> None:
    server = Server(processes, f"sqlite:///{tmp_path / 'rota.db'}", lease_ms=LEASE_MS)

    await kill_and_check(server, kills, "one server on SQLite")

    assert_verified(processes, server.store_url)


@pytest.mark.parametrize("kills", [pytest.param(2, marks=pytest.mark.slow), TORTURE])
async def test_a_killed_server_on_postgres_loses_nothing_acknowledged(
    processes: Processes, postgres_dsn: str, kills: int | None
) -> None:
    server = Server(processes, postgres_dsn, lease_ms=LEASE_MS)
    assert processes.rota("db", "upgrade", "--store", postgres_dsn).wait_for_exit() == 0

    await kill_and_check(server, kills, "one server on Postgres")

    assert_verified(processes, server.store_url)


def assert_verified(processes: Processes, store_url: str) -> None:
    """Folding the whole journal gives the rows of the store."""
    verify = processes.rota("db", "verify", "--store", store_url)
    assert verify.wait_for_exit() == 0, verify.output()
    assert "differences:  0" in verify.output()


async def kill_and_check(server: Server, kills: int | None, what: str) -> None:
    """Load the server, kill it, start it again, as often as asked; then judge. Prints how to repeat it."""
    chosen, started, done = seed(), monotonic(), 0
    print(f"ROTA_SEED={chosen}")
    chance = random.Random(chosen)
    server.start_and_wait()
    load = Load([server.url], SHARD_COUNT, chosen, CROWD)
    async with load.running():
        for _ in rounds(kills, share=SHARE):
            await load.until_facts(chance.randint(*FACTS_PER_ROUND))
            # An answer has just arrived; a moment later the server may be anywhere in its work.
            await asyncio.sleep(chance.uniform(0, 0.03))
            server.process.kill9()
            await asyncio.to_thread(server.start_and_wait)
            done += 1
        await load.until_facts(FACTS_PER_ROUND[0])
    # The verdict opens the store itself.
    assert await asyncio.to_thread(server.process.terminate) == 0
    verdict = await judge(load, Stored(server.store_url))
    if kills is None:
        add_row(row(what, verdict, done, (monotonic() - started) / 60, chosen))
    verdict.assert_clean()
    assert verdict.unanswered > 0, "the kills hit nothing that was under way"


def row(what: str, verdict: Verdict, kills: int, minutes: float, chosen: int) -> Row:
    return Row(
        what,
        minutes,
        rounds=kills,
        faults=kills,
        generations=verdict.generations,
        acknowledged=verdict.acked.total(),
        unanswered=verdict.unanswered,
        lost=verdict.lost,
        violations=len(verdict.violations),
        seed=chosen,
        independent=verdict.independent,
    )
