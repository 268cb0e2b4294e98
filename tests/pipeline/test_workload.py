"""The generator: its histories are true ones, the same seed gives the same, and a store filled with one holds."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rota.core.replica.ports import StoreRefused
from rota.demo.workload.fleet import HOUR_MS, draw_group
from rota.demo.workload.generate import Wanted, generate
from rota.demo.workload.shard import ShardWorld
from rota.pipeline.advisor import ACTUAL, STRATEGIES
from rota.pipeline.tables import ADVISOR, GOLD, Line
from rota.protocol.causes import CAUSES, Cause
from rota.storage.verify import verify
from tests.pipeline.journals import ordered
from tests.pipeline.replaying import findings_of, fold_lines, replays

UNTIL_MS = 1_763_700_000_000


@cache
def generated(seed: int = 7, groups: int = 8, hours: int = 6) -> list[Line]:
    plans = [draw_group(number, seed) for number in range(groups)]
    world = ShardWorld(0, plans, seed=seed, starts_at_ms=UNTIL_MS - hours * HOUR_MS)
    return [Line(*row) for row in world.run(UNTIL_MS)]


def rows_of(lines: list[Line], table: str) -> list[dict[str, Any]]:
    columns = [column.name for column in GOLD[table].columns]
    found = (row for _, _, rows in fold_lines(ordered(lines)) for row in rows)
    return [dict(zip(columns, row.values, strict=True)) for row in found if row.table == table]


@pytest.mark.thorough
def test_a_generated_history_keeps_the_promises_and_has_troubles() -> None:
    lines = generated()

    causes = Counter(row["cause"] for row in rows_of(lines, "rebalances"))
    assert list(findings_of(ordered(lines))) == []
    assert causes.keys() <= CAUSES.keys() - {Cause.OTHER}
    assert {"member_joined", "member_left", "member_expired", "metadata_changed"} <= causes.keys()
    assert rows_of(lines, "heartbeats")
    assert [line.seq for line in lines] == list(range(1, len(lines) + 1))


@pytest.mark.thorough
def test_of_a_pruned_beginning_only_known_facts_are_judged() -> None:
    left = [line for line in ordered(generated()) if line.seq > 500]
    repeated = next(line for line in left if line.kind == "generation_completed")

    found = findings_of(ordered([*left, repeated]), whole=False)

    assert list(findings_of(left, whole=False)) == []
    assert list(findings_of(left)) != []  # members are there that no line saw join
    assert {each.check for each in found} == {"S1"}


def test_the_same_seed_gives_the_same_history() -> None:
    assert generated(seed=3, groups=3, hours=2) == generated(seed=3, groups=3, hours=2)
    assert generated(seed=3, groups=3, hours=2) != generated(seed=4, groups=3, hours=2)


def sums_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, tuple[int, ...]]:
    """By group: units that were moved, had to be, had to be at least, and were revoked, over its whole history."""
    names = ("moves", "forced_moves", "least_moves", "revoked")
    sums: dict[str, tuple[int, ...]] = {}
    for row in rows:
        of_group = sums.get(row["group_id"], (0,) * len(names))
        sums[row["group_id"]] = tuple(old + (row[name] or 0) for old, name in zip(of_group, names, strict=True))
    return sums


def test_sticky_moves_least_and_the_advisor_knows_the_real_moves() -> None:
    lines = generated()
    names = [column.name for column in ADVISOR.columns]

    replayed = [row for row in replays(ordered(lines), STRATEGIES) if row.table == ADVISOR.name]
    advice = [dict(zip(names, row.values, strict=True)) for row in replayed]

    moves = {name: sum(row["moves"] for row in advice if row["assignor"] == name) for name in (ACTUAL, *STRATEGIES)}
    least = sum(row["least_moves"] for row in advice if row["assignor"] == "sticky")
    reported = [row for row in advice if row["assignor"] == ACTUAL]
    shares = [row for row in rows_of(lines, "assignments") if row["units"]]
    assert moves["sticky"] == least
    assert moves["sticky"] < moves["range"] < moves["roundrobin"]
    assert sums_of(reported) == sums_of(shares), "a step has what its rounds have together"


async def verified(url: str) -> list[str]:
    return [difference async for report in verify(url) for difference in report.differences]


def test_shards_written_at_once_do_not_block_each_other(tmp_path: Path) -> None:
    wanted = Wanted(f"sqlite:///{tmp_path / 'rota.db'}", groups=1, days=0.01, seed=7, until_ms=UNTIL_MS, shard_count=32)

    assert generate(wanted, processes=4).lines > 0


@pytest.mark.parametrize("engine", [pytest.param("sqlite", marks=pytest.mark.slow), "postgres"])
def test_a_store_that_is_filled_has_the_rows_of_its_journal(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path / 'rota.db'}" if engine == "sqlite" else request.getfixturevalue("postgres_dsn")
    wanted = Wanted(url, groups=6, days=0.1, seed=7, until_ms=UNTIL_MS, shard_count=2)

    done = generate(wanted, processes=2)

    assert done.lines > 500
    assert asyncio.run(verified(url)) == []
    with pytest.raises(StoreRefused, match="has a journal already"):
        generate(wanted)
