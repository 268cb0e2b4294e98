"""Does the past hold together? The promises of the protocol over the whole history, and the facts against the lines.

Two things are compared: the lines with themselves (none is missing, epochs and generations only grow, the service's own
core can replay them), and the facts with the lines (folding all of them anew gives the same rows). And advice has to be
possible: no assignment moves less than the least.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rota.pipeline.advice_rules import broken_rules
from rota.pipeline.events import Line, ddl, lines_of
from rota.pipeline.facts.units import load_decoders
from rota.pipeline.fold import GroupFold
from rota.pipeline.gold import by_group, sliced
from rota.pipeline.invariants import EpochSpan, Finding, GroupAudit, epochs_mixed
from rota.pipeline.lake import FOLDS, Lake, Moment
from rota.pipeline.spark_files import frame_of
from rota.pipeline.tables import FOLDED, GOLD, UNFOLDED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FOUND = pa.schema(
    [
        ("what", pa.string()),
        ("shard_id", pa.int32()),
        ("namespace", pa.string()),
        ("group_id", pa.string()),
        ("number", pa.int64()),
        ("text", pa.string()),
    ]
)
_MOST_FINDINGS = 1_000
"""A task that finds more than that has made its point."""


@dataclass(frozen=True, slots=True)
class Audited:
    """The checked history, and the violations."""

    lines: int
    groups: int
    tables: int
    """Compared with the lines; 0 where lines of bronze were dropped after they had been folded."""
    findings: tuple[Finding, ...]


def audit(spark: SparkSession, lake: Lake) -> Audited:
    """Check everything up to the last refresh, as far as its lines are there."""
    moment = lake.moment()
    plan = lake.plan(FOLDS, moment.fold) or {"to_batch": 0, "decoder": ""}
    if not lake.bronze.uris():
        return Audited(0, 0, 0, ())
    lines = sliced(spark, lake, 0, plan["to_batch"])
    firsts = lines.groupBy("shard_id").agg({"seq": "min"}).collect()
    first = {int(shard_id): int(seq) for shard_id, seq in firsts}
    beheaded = frozenset(shard_id for shard_id, seq in first.items() if seq > 1)
    found = by_group(lines).mapInArrow(_checker(plan["decoder"], beheaded), ddl(_FOUND)).collect()
    replayed = _sums(row for row in found if row.what.startswith("rows of "))
    findings = [Finding(*row) for row in found if not row.what.startswith(("rows of ", "seen"))]
    findings += [*_numbers(lines), *epochs_mixed(_epochs(lines))]
    compared = FOLDED if _has_all_that_was_read(lake, first) else ()
    stored = {table: _stored(spark, moment, table) for table in compared}
    findings += [
        _other_rows(table, stored[table][0], replayed.get(table, (0, 0))[0])
        for table in compared
        if stored[table] != replayed.get(table, (0, 0))
    ]
    findings += [finding for table in UNFOLDED for finding in _impossible(spark, moment, table)]
    seen = [row for row in found if row.what == "seen"]
    return Audited(lines.count(), sum(row.number for row in seen), len(compared), tuple(findings))


def _has_all_that_was_read(lake: Lake, first: Mapping[int, int]) -> bool:
    """Whether bronze begins where its first batch began. Otherwise the facts know of more than its lines."""
    start = lake.began()
    return all(seq == start.shards.get(shard_id, 0) + 1 for shard_id, seq in first.items())


def _checker(decoder: str, beheaded: frozenset[int]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What each task does: replay its groups, fold them again, and add up the rows that come out."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoders = load_decoders(decoder)
        sums: dict[str, list[int]] = {}
        found: list[tuple[Any, ...]] = []
        groups = 0
        lines = chain.from_iterable(map(lines_of, batches))
        for key, of_group in groupby(lines, key=lambda line: (line.shard_id, line.namespace, line.group_id)):
            groups += 1
            fold = GroupFold(key[1], key[2], decoders=decoders)
            replay = GroupAudit(key[0], whole=key[0] not in beheaded)
            for line in of_group:
                found += [(check, *key, line.seq, text) for check, text in replay.add(line)]
                found += [("advice", *key, line.seq, text) for text in _add_rows(sums, fold, line)]
        totals = [(f"rows of {table}", count, "", "", total, "") for table, (count, total) in sums.items()]
        yield _batch(found[:_MOST_FINDINGS] + totals + [("seen", 0, "", "", groups, "")])

    return run


def _add_rows(sums: dict[str, list[int]], fold: GroupFold, line: Line) -> list[str]:
    """Add the rows that the line closes to the sums; returns the impossible values in them."""
    broken: list[str] = []
    for table, values in fold.add(line):
        total = sums.setdefault(table, [0, 0])
        total[0] += 1
        total[1] = (total[1] + row_hash(values)) % 2**61
        broken += broken_rules(table, values)
    return broken


def row_hash(values: tuple[Any, ...]) -> int:
    """A number that another row hardly has; times are microseconds on both sides."""
    return int.from_bytes(blake2b(repr(values).encode(), digest_size=7).digest(), "big")


def _impossible(spark: SparkSession, moment: Moment, table: str) -> list[Finding]:
    """The rows of a table, as it is stored, that cannot be true."""
    uris, schema = moment.fact_files(table), GOLD[table].schema
    if not uris:
        return []

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        broken = [
            ("advice", -1, values[0], values[1], 0, text)
            for batch in batches
            for values in _rows(batch, schema)
            for text in broken_rules(table, values)
        ]
        if broken:
            yield _batch(broken[:_MOST_FINDINGS])

    found = frame_of(spark, uris, schema).mapInArrow(run, ddl(_FOUND)).collect()
    return [Finding(*row) for row in found]


def _stored(spark: SparkSession, moment: Moment, table: str) -> tuple[int, int]:
    """How many rows a table has, and the sum of their hashes."""
    uris = moment.fact_files(table)
    if not uris:
        return 0, 0
    schema = GOLD[table].schema

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        count = total = 0
        for batch in batches:
            for values in _rows(batch, schema):
                count, total = count + 1, (total + row_hash(values)) % 2**61
        yield _batch([(f"rows of {table}", count, "", "", total, "")])

    rows = frame_of(spark, uris, schema).mapInArrow(run, ddl(_FOUND)).collect()
    return _sums(iter(rows)).get(table, (0, 0))


def _rows(batch: pa.RecordBatch, schema: pa.Schema) -> Iterator[tuple[Any, ...]]:
    """As the fold makes them: times are microseconds."""
    columns = [
        batch.column(field.name).cast(pa.int64()) if pa.types.is_timestamp(field.type) else batch.column(field.name)
        for field in schema
    ]
    return zip(*(column.to_pylist() for column in columns), strict=True)


def _sums(rows: Iterator[Any]) -> dict[str, tuple[int, int]]:
    """Counts and sums of hashes by table; the count is where a finding has its shard."""
    sums: dict[str, tuple[int, int]] = {}
    for row in rows:
        table = row.what.removeprefix("rows of ")
        count, total = sums.get(table, (0, 0))
        sums[table] = (count + row.shard_id, (total + row.number) % 2**61)
    return sums


def _other_rows(table: str, stored: int, folded: int) -> Finding:
    differ = f"{folded}" if stored != folded else "as many, but others"
    return Finding("facts", -1, "", "", 0, f"{table} has {stored} rows; folding the lines anew gives {differ}")


def _numbers(lines: DataFrame) -> list[Finding]:
    """Each shard's lines are there once, from the first that was read to the last."""
    from pyspark.sql import functions as F

    counted = lines.groupBy("shard_id").agg(
        F.count("*").alias("n"), F.countDistinct("seq").alias("d"), F.min("seq").alias("a"), F.max("seq").alias("b")
    )
    return [
        Finding(
            "gap", row.shard_id, "", "", row.a, f"{row.n} lines, {row.d} of them different, from {row.a} to {row.b}"
        )
        for row in counted.where("n <> b - a + 1 OR d <> n").collect()
    ]


def _epochs(lines: DataFrame) -> list[EpochSpan]:
    """A row for each owner that a shard has had: few, however many lines there are."""
    from pyspark.sql import functions as F

    first = F.min(F.struct("seq", "namespace", "group_id")).alias("first")
    spans = lines.groupBy("shard_id", "epoch").agg(first, F.max("seq").alias("last"))
    rows = spans.select("shard_id", "epoch", "first.*", "last").orderBy("shard_id", "epoch").collect()
    return [EpochSpan(*row) for row in rows]


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _FOUND, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_FOUND)
