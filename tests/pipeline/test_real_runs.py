"""Journals of real runs, not simulated: each rebalance has its cause, and the audit finds changed lines."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
import pytest

from rota.demo.workload.generate import COLUMNS
from rota.pipeline.audit import audit
from rota.pipeline.batches import Batches, progress_of, start
from rota.pipeline.failures import LinesMissing
from rota.pipeline.invariants import Finding
from rota.pipeline.journal import Wanted, open_journal, spans_between
from rota.pipeline.lake import Lake, Snapshot
from rota.pipeline.report import make_report
from rota.pipeline.tables import FOLDED, GOLD, Line, lines_of
from rota.protocol.causes import CAUSES, Cause
from tests.faults.load import Crowd, Load
from tests.pipeline.journals import ordered
from tests.pipeline.replaying import findings_of, fold_lines
from tests.processes.server import Server
from tests.processes.test_kill9 import kill_and_check, seed
from tests.support.cluster import Cluster
from tests.support.processes import Processes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


class Examined(NamedTuple):
    """What `rota pipeline` says of a store."""

    causes: dict[str, int]
    findings: tuple[Finding, ...]


def examine(spark: SparkSession, store_url: str, folder: Path) -> Examined:
    """Read all of it into new tables, and ask for the report and the audit."""
    lake = Lake(spark, str(folder))
    list(progress_of(start(Batches(lake), {"url": store_url})))
    [causes_reported] = [section for section in make_report(lake).sections if section.name == "causes"]
    audited = audit(lake)
    assert (audited.lines, audited.tables) == (Snapshot(lake).lines().count(), len(FOLDED))
    return Examined({cause: count for cause, count, _ in causes_reported.rows}, audited.findings)


# --- tampering --------------------------------------------------------------------------------------


class Tampering(NamedTuple):
    """What one line says otherwise, and the check that must name it."""

    line: Line
    changed: dict[str, Any]
    check: str

    def is_named_in(self, findings: tuple[Finding, ...]) -> bool:
        line = self.line
        return (self.check, line.shard_id, line.namespace, line.group_id, line.seq) in [each[:5] for each in findings]


def tamperings(lines: list[Line]) -> list[Tampering]:
    """One of each kind, the latest that there is; in groups of their own, as far as there are so many."""
    found: list[Tampering] = []
    for kind in (_of_an_earlier_epoch, _given_to_nobody, _a_generation_again, _led_by_nobody):
        possible = list(kind(lines))
        elsewhere = [each for each in possible if each.line.group_id not in {x.line.group_id for x in found}]
        found.append((elsewhere or possible)[-1])
    return found


def _of_an_earlier_epoch(lines: list[Line]) -> Iterator[Tampering]:
    for before, line in pairwise(lines):
        if line.group_id and before[3:6] == line[3:6]:
            yield Tampering(line, {"epoch": line.epoch - 1}, "epoch")


def _given_to_nobody(lines: list[Line]) -> Iterator[Tampering]:
    for line in of_kind(lines, "assignment_synced"):
        payload = json.loads(line.payload)
        if payload["assignments"]:
            payload["assignments"][0][0] = "nobody"
            yield Tampering(line, {"payload": json.dumps(payload)}, "S6")


def _a_generation_again(lines: list[Line]) -> Iterator[Tampering]:
    for line in of_kind(lines, "generation_completed"):
        payload = json.loads(line.payload)
        again = payload["generation_id"] - 1
        if again:
            payload["generation_id"] = again
            yield Tampering(line, {"generation_id": again, "payload": json.dumps(payload)}, "S1")


def _led_by_nobody(lines: list[Line]) -> Iterator[Tampering]:
    for line in of_kind(lines, "generation_completed"):
        payload = json.loads(line.payload) | {"leader_id": "nobody"}
        yield Tampering(line, {"payload": json.dumps(payload)}, "S2")


def of_kind(lines: list[Line], kind: str) -> Iterator[Line]:
    return (line for line in lines if line.kind == kind)


@contextmanager
def tampered(store_url: str, line: Line, changed: Mapping[str, Any] | None) -> Iterator[None]:
    """In the store the line says something else, or is gone, for the time of the block."""
    table, place = ("group_events", "?") if store_url.startswith("sqlite") else ("rota.group_events", "%s")
    one = f"FROM {table} WHERE shard_id = {place} AND seq = {place}"
    insert = f"INSERT INTO {table} ({', '.join(COLUMNS)}) VALUES ({', '.join([place] * len(COLUMNS))})"
    key = (line.shard_id, line.seq)
    with connected(store_url) as execute:
        [row] = execute(f"SELECT {', '.join(COLUMNS)} {one}", key)
        execute(f"DELETE {one}", key)
        if changed:
            execute(insert, tuple((dict(zip(COLUMNS, row, strict=True)) | dict(changed)).values()))
    yield
    with connected(store_url) as execute:
        execute(f"DELETE {one}", key)
        execute(insert, row)


@contextmanager
def connected(store_url: str) -> Iterator[Callable[[str, tuple[Any, ...]], list[tuple[Any, ...]]]]:
    """A transaction of the store's owner."""
    if store_url.startswith("sqlite"):
        path = store_url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(path, timeout=30)) as connection, connection:
            yield lambda sql, values: connection.execute(sql, values).fetchall()
        return
    with psycopg.connect(store_url) as postgres, postgres.cursor() as cursor:

        def execute(sql: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
            cursor.execute(sql, values)
            return cursor.fetchall() if cursor.description else []

        yield execute


def check_a_real_run(spark: SparkSession, store_url: str, folder: Path) -> None:
    """As it was written all is well; each change in the store is found and named; put back, all is well again."""
    as_written = examine(spark, store_url, folder / "as-written")
    lines = read(store_url)
    for each in (done := tamperings(lines)):
        with tampered(store_url, each.line, each.changed):
            assert each.is_named_in(tuple(findings_of(read(store_url)))), each
        assert list(findings_of(read(store_url))) == []
    gone = done[0].line
    with (
        tampered(store_url, gone, None),
        pytest.raises(LinesMissing, match=f"shard {gone.shard_id}: 1 of the lines {gone.seq} to {gone.seq} are not"),
    ):
        read(store_url)
    with ExitStack() as all_at_once:
        apart = {each.line.group_id: each for each in done}.values()
        for each in apart:
            all_at_once.enter_context(tampered(store_url, each.line, each.changed))
        with_all = examine(spark, store_url, folder / "tampered")

    assert as_written.findings == ()
    assert as_written.causes.keys() <= CAUSES.keys() - {Cause.OTHER}
    assert sum(as_written.causes.values()) >= len(list(of_kind(lines, "rebalance_started"))) >= 2
    assert [each for each in apart if not each.is_named_in(with_all.findings)] == []
    assert list(findings_of(read(store_url))) == []


# --- runs -------------------------------------------------------------------------------------------


def test_a_demo_in_which_the_leader_is_killed(spark: SparkSession, processes: Processes, tmp_path: Path) -> None:
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
    assert found.keys() <= CAUSES.keys() - {Cause.OTHER}
    assert "member_expired" in found
    check_a_real_run(spark, server.store_url, tmp_path)


async def test_a_server_that_is_killed_while_members_come_and_go(processes: Processes, tmp_path: Path) -> None:
    server = Server(processes, f"sqlite:///{tmp_path / 'rota.db'}", lease_ms=1_000)

    await kill_and_check(server, 3, "journals for the pipeline")

    lines = read(server.store_url)
    found = causes(lines)
    assert list(findings_of(lines)) == []
    assert found.total() > 5
    assert found.keys() <= CAUSES.keys() - {Cause.OTHER}
    assert len({line.epoch for line in lines}) > 3


async def test_a_fleet_survives_killed_replicas_while_members_change(
    spark: SparkSession, processes: Processes, tmp_path: Path
) -> None:
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
        # Replicas and the network between them go on meanwhile.
        await asyncio.to_thread(check_a_real_run, spark, cluster.dsn, tmp_path)

    found = causes(lines)
    owners = [row.values[_FROM] for _, _, rows in fold_lines(lines) for row in rows if row.table == "failovers"]
    assert list(findings_of(lines)) == []
    assert found.total() > 5
    assert found.keys() <= CAUSES.keys() - {Cause.OTHER}
    assert len({owner for owner in owners if owner}) >= 3
