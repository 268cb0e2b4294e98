"""Journals of real runs, not simulated ones: every rebalance has its cause, and the audit has nothing to say."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rota.pipeline.events import Line, lines_of
from rota.pipeline.facts.causes import CAUSES, UNKNOWN
from rota.pipeline.fold import fold_lines
from rota.pipeline.invariants import findings_of
from rota.pipeline.journal import Wanted, open_journal
from rota.pipeline.positions import spans_between
from rota.pipeline.tables import GOLD
from tests.faults.load import Crowd, Load
from tests.pipeline.journals import ordered
from tests.processes.server import Server
from tests.processes.test_kill9 import kill_and_check, seed
from tests.support.cluster import Cluster
from tests.support.processes import Processes

pytestmark = [pytest.mark.processes, pytest.mark.slow]

_CAUSE = [column.name for column in GOLD["rebalances"].columns].index("cause")
_FROM = [column.name for column in GOLD["failovers"].columns].index("from_replica")


def read(store_url: str) -> list[Line]:
    journal = open_journal(store_url)
    heads = journal.heads()
    spans = spans_between(heads.start, heads.end)
    return ordered([line for batch in journal.batches(spans, Wanted()) for line in lines_of(batch)])


def causes(lines: list[Line]) -> Counter[str]:
    """Of all rebalances, also of those under way."""
    found: Counter[str] = Counter()
    for _, fold, rows in fold_lines(lines):
        found.update(row.values[_CAUSE] for row in [*rows, *fold.open_rows()] if row.table == "rebalances")
    return found


def test_a_demo_in_which_the_leader_is_killed(processes: Processes, tmp_path: Path) -> None:
    server = Server(processes, f"sqlite:///{tmp_path / 'rota.db'}")
    server.start_and_wait()
    for number in range(40):
        (tmp_path / "input").mkdir(exist_ok=True)
        (tmp_path / "input" / f"{number}.txt").write_text("one two, three: four\nfünf\n")

    demo = processes.rota("demo", "--input", tmp_path / "input", "--url", server.url, "--session-timeout-ms", "1000")
    assert demo.wait_for_exit(60) == 0

    lines = read(server.store_url)
    found = causes(lines)
    assert list(findings_of(lines)) == []
    assert found.total() >= 3
    assert found.keys() <= CAUSES.keys() - {UNKNOWN}
    assert "session expired" in found


async def test_a_server_that_is_killed_while_members_come_and_go(processes: Processes, tmp_path: Path) -> None:
    server = Server(processes, f"sqlite:///{tmp_path / 'rota.db'}", lease_ms=1_000)

    await kill_and_check(server, 3, "journals for the pipeline")

    lines = read(server.store_url)
    found = causes(lines)
    assert list(findings_of(lines)) == []
    assert found.total() > 5
    assert found.keys() <= CAUSES.keys() - {UNKNOWN}
    assert len({line.epoch for line in lines}) > 3


async def test_a_fleet_in_which_replicas_are_killed_while_members_come_and_go(processes: Processes) -> None:
    async with Cluster(processes) as cluster:
        load = Load(cluster.urls, cluster.shard_count, seed(), Crowd(churn_s=3.0))
        async with load.running():
            for name in ("r1", "r2"):
                cluster.replicas[name].kill9()
                await cluster.until_moved(name)
                await load.until_facts(100)
                cluster.replicas[name].start()
                await cluster.until_settled()

        lines = read(cluster.dsn)

    found = causes(lines)
    owners = [row.values[_FROM] for _, _, rows in fold_lines(lines) for row in rows if row.table == "failovers"]
    assert list(findings_of(lines)) == []
    assert found.total() > 5
    assert found.keys() <= CAUSES.keys() - {UNKNOWN}
    assert len({owner for owner in owners if owner}) >= 3
