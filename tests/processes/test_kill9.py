"""kill -9 of the server at random moments, under load: nothing that was acknowledged is lost or contradicted."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path
from time import monotonic

import httpx
import pytest

from rota.protocol.ids import shard_of
from tests.processes.history import AckedJoin, Event, History, Partition, Progress, violations
from tests.processes.load import Load, read_journal, read_offsets
from tests.processes.server import SHARD_COUNT, Server
from tests.support.processes import Processes
from tests.support.torture import Row, add_row, rounds

pytestmark = pytest.mark.processes

FACTS_PER_ROUND = (20, 250)
LEASE_MS = 1_000

# How often the server is killed; None: for its share of the time that `make torture` takes.
TORTURE = pytest.param(None, marks=pytest.mark.torture, id="torture")
SHARE = 0.3


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
    """Load the server, kill it, start it again, check; as often as asked. Prints how to repeat it."""
    chosen, started, found = seed(), monotonic(), list[str]()
    print(f"ROTA_SEED={chosen}")
    chance = random.Random(chosen)
    server.start_and_wait()
    load = Load(server.url, chosen)
    async with load.running():
        for number in rounds(kills, share=SHARE):
            await load.until_facts(chance.randint(*FACTS_PER_ROUND), server.process)
            # An answer has just arrived; a moment later the server may be anywhere in its work.
            await asyncio.sleep(chance.uniform(0, 0.03))
            server.process.kill9()
            await load.until_still()
            server.start_and_wait()
            found = await check(server.url, load)
            print(f"kill {number + 1}: {load.history.summary()}, lost: {len(found)}")
            if found:
                break
        if kills is None:
            add_row(row(what, load.history, number + 1, len(found), (monotonic() - started) / 60, chosen))
        assert not found, "\n".join(found)
        await load.until_facts(FACTS_PER_ROUND[0], server.process)
    assert load.history.unanswered > number, "the kills hit nothing that was under way"
    assert server.process.terminate() == 0


def row(what: str, history: History, kills: int, lost: int, minutes: float, chosen: int) -> Row:
    generations = sum(history.highest.values())
    return Row(what, minutes, kills, kills, generations, history.facts, history.unanswered, lost, lost, chosen)


async def check(url: str, load: Load) -> list[str]:
    """The facts of the restarted server, against those that were acknowledged."""
    journal: dict[str, list[Event]] = {group_id: [] for group_id in load.group_ids}
    ends: dict[int, int] = {}
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        for shard_id in range(SHARD_COUNT):
            events = await read_journal(http, shard_id)
            ends[shard_id] = events[-1]["revision"] if events else 0
            for event in events:
                if event["group_id"]:
                    journal[event["group_id"]].append(event)
        offsets: dict[Partition, int] = {}
        for group_id in load.group_ids:
            offsets |= await read_offsets(http, group_id)
    ends_by_group = {group_id: ends[shard_of("default", group_id, SHARD_COUNT)] for group_id in load.group_ids}
    return list(violations(load.history, journal, offsets, ends_by_group))


# --- the check itself can fail ---------------------------------------------------------------------


def completed(revision: int, generation_id: int, leader_id: str, *member_ids: str) -> Event:
    payload = {"generation_id": generation_id, "leader_id": leader_id, "member_ids": list(member_ids)}
    return {"kind": "generation_completed", "revision": revision, "payload": payload}


def joined(generation_id: int = 2, leader_id: str = "a", at_least: int = 0, revision: int = 9) -> AckedJoin:
    return AckedJoin("g", "a", generation_id, leader_id, frozenset({"a"}), at_least, revision, epoch=1)


@pytest.mark.parametrize(
    ("journal", "join", "found"),
    [
        ([completed(1, 1, "a", "a")], joined(), "the generation is lost"),
        ([completed(1, 2, "b", "a", "b")], joined(), "leaders of it are {'b'}"),
        ([completed(1, 2, "a", "b")], joined(), "members of it are {'b'}"),
        ([completed(1, 2, "a", "a"), completed(2, 2, "a", "a")], joined(), "go back or repeat"),
        ([completed(1, 2, "a", "a")], joined(at_least=3), "went back"),
        ([completed(9, 2, "a", "a")], joined(revision=8), "answered before"),
        ([completed(1, 2, "a", "a")], joined(revision=99), "its journal ends at 9"),
    ],
)
def test_the_check_sees_a_lost_join(journal: list[Event], join: AckedJoin, found: str) -> None:
    history = History()
    history.joined(join)

    reported = list(violations(history, {"g": journal}, {}, {"g": 9}))

    assert any(found in one for one in reported), reported


@pytest.mark.parametrize(
    ("stored", "found"),
    [(-1, "5 was acknowledged"), (8, "which nobody sent"), (7, "was refused"), (6, None), (5, None)],
)
def test_the_check_sees_a_lost_and_a_refused_commit(stored: int, found: str | None) -> None:
    history = History()
    history.progress["g", 0] = Progress(acked=5, unknown={6}, refused={7})

    reported = list(violations(history, {"g": []}, {("g", 0): stored}, {"g": 9}))

    assert any(found in one for one in reported) if found else not reported
