"""The queries of docs/how-to/query-the-lake.md, on a lake of a faulty world."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest
import sqlglot
from deltalake import DeltaTable
from sqlglot import exp

from rota.pipeline.session import session
from tests.docs.pages import ROOT, Block, blocks_of, run
from tests.pipeline.journals import UNTIL_MS, simulated
from tests.pipeline.lakes import Fed

PAGE = ROOT / "docs" / "how-to" / "query-the-lake.md"

pytestmark = [pytest.mark.slow, pytest.mark.processes]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a reader runs the blocks: `rota-lake` is there."""
    folder = tmp_path_factory.mktemp("reader")
    journal = tuple(line._replace(at_ms=UNTIL_MS + line.at_ms) for line in simulated(1))
    with session("local[2]") as spark:
        fed = Fed(spark, folder, journal)
        for to_seq in (60, 1_000):
            fed.append(to_seq)
            fed.read()
    Path(fed.lake.root).rename(folder / "rota-lake")
    return folder


def blocks(language: str) -> list[Block]:
    return [block for block in blocks_of(PAGE) if block.language == language]


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: str(block.line))
def test_each_block_runs(block: Block, folder: Path) -> None:
    printed = run(block, {}, {}, folder)

    assert any(character.isdigit() for character in printed)


def test_the_query_for_trino_gives_rows_in_another_dialect(folder: Path) -> None:
    [query] = [block.text for block in blocks("sql") if block.more == "trino"]
    [parsed] = sqlglot.parse(query, read="trino")
    engine = duckdb.connect()
    engine.register("facts", facts(folder))

    found = engine.execute(sqlglot.transpile(query, read="trino", write="duckdb")[0]).fetchall()

    assert parsed is not None
    assert list(parsed.find_all(exp.Anonymous)) == []
    assert len(found) > 0
    assert sum(row[1] for row in found) > 0, "the query finds no expired member, though the journal has some"
    assert [row[2] for row in found] == sorted((row[2] for row in found), reverse=True)


def facts(folder: Path) -> Any:
    """The table, by another reader than Spark."""
    return DeltaTable(folder / "rota-lake" / "gold" / "facts").to_pyarrow_table()
