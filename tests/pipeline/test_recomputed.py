"""Eight tables, computed a second time by DuckDB: SQL over the journal's lines, written from docs/reference/tables.md.

The queries share no code with the pipeline. `recomputed/TABLE.sql` reads the table `lines`, which is the journal; its
first column says whether the row is complete.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from rota.core.group.records import Administered, Entry, encode_entry
from rota.demo.workload.fleet import HOUR_MS, draw_group
from rota.demo.workload.shard import ShardWorld
from rota.pipeline.facts.fact import Row
from rota.pipeline.tables import GOLD, Line
from tests.pipeline.journals import SIMULATED, UNTIL_MS, ordered, simulated
from tests.pipeline.replaying import fold_lines

QUERIES = Path(__file__).parent / "recomputed"
TABLES = sorted(path.stem for path in QUERIES.glob("*.sql"))
Rows = Counter[tuple[Any, ...]]


def scaled(hours: int) -> tuple[Line, ...]:
    """The journal of a group under an autoscaler."""
    world = ShardWorld(0, [draw_group(5, seed=7)], seed=7, starts_at_ms=UNTIL_MS - hours * HOUR_MS)
    return tuple(Line(*row) for row in world.run(UNTIL_MS))


def stretched(seed: int) -> tuple[Line, ...]:
    """The journal of a faulty world, each second stretched to a quarter of an hour: rows by the hour end in it."""
    return tuple(line._replace(at_ms=line.at_ms * 900) for line in simulated(seed))


def administered() -> tuple[Line, ...]:
    """Acts on a group, on topics and on nothing that has a name, between the lines of a faulty world."""
    journal = simulated(1)
    acts = [
        Administered("RemoveMember", "ada", "m-1", "it hangs", "10.0.0.1"),
        Administered("DeleteGroup", "bob", "", "", "host-2"),
        Administered("PutTopic", "", "orders", "more of them", ""),
        Administered("Frozen", "a 'quoted' näme", "", "x" * 300, "::1"),
    ]
    last = max(line.seq for line in journal if line.shard_id == 0)
    more = []
    for number in range(1, 17):
        group_id = ("g-1", "")[number % 2]
        written = encode_entry(Entry("default", group_id, number % 3, UNTIL_MS + number, acts[number % 4]))
        payload = json.dumps(written.pop("payload"))
        more.append(Line(0, last + number, epoch=9, payload=payload, **written))
    return (*journal, *more)


HISTORIES: dict[str, Callable[[], tuple[Line, ...]]] = {
    **{f"seed {seed}": partial(simulated, seed) for seed in (1, 4, 8, 10, 29)},
    **{f"seed {seed}, stretched": partial(stretched, seed) for seed in (1, 2, 26, 31, 42, 50, 60)},
    "an autoscaler": partial(scaled, 5),
    "administrators": administered,
}


@pytest.mark.thorough
@pytest.mark.parametrize("history", HISTORIES)
def test_tables_are_those_that_another_engine_makes_of_the_lines(history: str) -> None:
    journal = HISTORIES[history]()
    engine, folded = loaded(journal), [row for _, _, rows in fold_lines(ordered(journal), SIMULATED) for row in rows]

    for table in TABLES:
        made, wanted = rows_of(folded, table), recomputed(engine, table)
        assert made == wanted, f"{table}: only the pipeline has {made - wanted}, only DuckDB {wanted - made}"


def test_the_histories_reach_every_table_and_every_end() -> None:
    found = dict.fromkeys(TABLES, Rows())
    for history in HISTORIES.values():
        engine = loaded(history())
        found = {table: rows + recomputed(engine, table) for table, rows in found.items()}

    assert {table for table, rows in found.items() if rows.total() > 10} == set(TABLES)
    assert len(TABLES) == 8
    goings = {"left", "expired", "removed", "replaced"}
    assert values_of("members", "end", found["members"]) == {*goings, "forgotten"}
    assert values_of("leader_tenures", "ended_by", found["leader_tenures"]) >= goings


def values_of(table: str, column: str, rows: Rows) -> set[Any]:
    number = [each.name for each in GOLD[table].columns].index(column)
    return {row[number] for row in rows}


def loaded(journal: tuple[Line, ...]) -> duckdb.DuckDBPyConnection:
    """DuckDB with the journal as the table `lines`."""
    engine = duckdb.connect(config={"threads": 1})
    engine.execute("SET enable_progress_bar = false")
    columns = dict(zip(Line._fields, zip(*journal, strict=True), strict=True))
    raw = pa.table({name: list(values) for name, values in columns.items()})
    engine.register("raw", raw)
    engine.execute("CREATE TABLE lines AS SELECT * REPLACE (CAST(payload AS JSON) AS payload) FROM raw")
    return engine


def recomputed(engine: duckdb.DuckDBPyConnection, table: str) -> Rows:
    """The complete rows, in the order of the table's columns."""
    found = engine.execute((QUERIES / f"{table}.sql").read_text())
    names = [name for name, *_ in found.description or ()]
    rows = (dict(zip(names, row, strict=True)) for row in found.fetchall())
    columns = [column.name for column in GOLD[table].columns]
    assert sorted(names) == sorted([*columns, "complete"])
    return Counter(tuple(plain(row[name]) for name in columns) for row in rows if row["complete"])


def rows_of(folded: list[Row], table: str) -> Rows:
    """The complete rows of a table; times as milliseconds since 1970."""
    times = [pa.types.is_timestamp(column.type_) for column in GOLD[table].columns]
    return Rows(
        tuple(plain(v // 1000 if time and v is not None else v) for v, time in zip(row.values, times, strict=True))
        for row in folded
        if row.table == table
    )


def plain(value: Any) -> Any:
    """A value that can be counted: a list as a tuple, a rate to nine digits after the point."""
    if isinstance(value, list):
        return tuple(value)
    return round(value, 9) if isinstance(value, float) else value
