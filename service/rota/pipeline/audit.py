"""Does the past hold together? The promises of the protocol over the whole history, and the facts against the lines.

Two things are compared: the lines with themselves (none is missing, epochs and generations only grow, the service's own
core can replay them), and the facts with the lines (folding all of them anew gives the same rows). And advice has to be
possible: no assignment moves less than the least.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rota.pipeline.facts.units import load_decoders
from rota.pipeline.fold import GroupFold
from rota.pipeline.invariants import EpochSpan, Finding, GroupAudit, epochs_mixed
from rota.pipeline.lake import Lake, Snapshot
from rota.pipeline.tables import FOLDED, GOLD, UNFOLDED, Line, ddl, lines_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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


def audit(lake: Lake, *, decoder: str = "") -> Audited:
    """Check everything up to the last batch, as far as its lines are there. The decoder is that of the batches."""
    tables = Snapshot(lake)
    lines = tables.lines()
    firsts = lines.groupBy("shard_id").agg({"seq": "min"}).collect()
    first = {int(shard_id): int(seq) for shard_id, seq in firsts}
    beheaded = frozenset(shard_id for shard_id, seq in first.items() if seq > 1)
    found = (
        lines.groupBy("shard_id", "namespace", "group_id")
        .applyInArrow(_checker(decoder, beheaded), ddl(_FOUND))
        .collect()
    )
    replayed = _sums(row for row in found if row.what.startswith("rows of "))
    findings = [Finding(*row) for row in found if not row.what.startswith(("rows of ", "seen"))]
    findings += [*_numbers(lines), *epochs_mixed(_epochs(lines))]
    compared = () if beheaded else FOLDED
    stored = {table: _stored(tables, table) for table in compared}
    findings += [
        _other_rows(table, stored[table][0], replayed.get(table, (0, 0))[0])
        for table in compared
        if stored[table] != replayed.get(table, (0, 0))
    ]
    findings += [finding for table in UNFOLDED for finding in _impossible(tables, table)]
    seen = [row for row in found if row.what == "seen"]
    return Audited(lines.count(), sum(row.number for row in seen), len(compared), tuple(findings))


def _checker(decoder: str, beheaded: frozenset[int]) -> Callable[[tuple[Any, ...], pa.Table], pa.Table]:
    """The function that replays one group, folds it again, and adds up the rows that come out."""

    def run(key: tuple[Any, ...], lines: pa.Table) -> pa.Table:
        shard_id, namespace, group_id = group = tuple(part.as_py() for part in key)
        sums: dict[str, list[int]] = {}
        found: list[tuple[Any, ...]] = []
        fold = GroupFold(namespace, group_id, decoders=load_decoders(decoder))
        replay = GroupAudit(shard_id, whole=shard_id not in beheaded)
        for line in lines_of(lines.sort_by("seq")):
            found += [(check, *group, line.seq, text) for check, text in replay.add(line)]
            found += [("advice", *group, line.seq, text) for text in _add_rows(sums, fold, line)]
        totals = [(f"rows of {table}", count, "", "", total, "") for table, (count, total) in sums.items()]
        return pa.table(_batch([*found[:_MOST_FINDINGS], *totals, ("seen", 0, "", "", 1, "")]))

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


def _impossible(tables: Snapshot, table: str) -> list[Finding]:
    """The rows of a table, as it is stored, that cannot be true."""
    schema = GOLD[table].schema

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        broken = [
            ("advice", -1, values[0], values[1], 0, text)
            for batch in batches
            for values in _rows(batch, schema)
            for text in broken_rules(table, values)
        ]
        if broken:
            yield _batch(broken[:_MOST_FINDINGS])

    return [Finding(*row) for row in tables.closed(table).mapInArrow(run, ddl(_FOUND)).collect()]


def _stored(tables: Snapshot, table: str) -> tuple[int, int]:
    """How many rows a table has, and the sum of their hashes."""
    schema = GOLD[table].schema

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        count = total = 0
        for batch in batches:
            for values in _rows(batch, schema):
                count, total = count + 1, (total + row_hash(values)) % 2**61
        yield _batch([(f"rows of {table}", count, "", "", total, "")])

    rows = tables.closed(table).mapInArrow(run, ddl(_FOUND)).collect()
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


# --- what must hold in each row of advice, whatever the history ------------------------------------------

Rule = Callable[[Mapping[str, Any]], bool]
"""Whether a row, by the names of its columns, keeps it."""


def _not_negative(column: str) -> Rule:
    return lambda row: row[column] >= 0


_ANY_ASSIGNMENT: dict[str, Rule] = {
    "moves >= least_moves": lambda row: row["moves"] >= row["least_moves"],
    "least_moves >= 0": lambda row: row["least_moves"] >= 0,
    "moves >= forced_moves": lambda row: row["moves"] >= row["forced_moves"] >= 0,
    "units >= imbalance": lambda row: row["units"] >= row["imbalance"] >= 0,
}
RULES: dict[str, dict[str, Rule]] = {
    "assignments": {
        **_ANY_ASSIGNMENT,
        "units >= moves + added": lambda row: row["units"] >= row["moves"] + row["added"],
        "unassigned >= in_motion": lambda row: row["unassigned"] >= row["in_motion"] >= 0,
        "round >= 1": lambda row: row["round"] >= 1,
    },
    "timeout_advice": {
        "no false expiries where no silence was longer": lambda row: _agrees(
            row["false_expiries_per_day"], row["session_timeout_ms"], row["longest_gap_ms"]
        ),
        "none with the recommended timeout where no silence was longer": lambda row: (
            row["recommended_ms"] is None
            or _agrees(row["recommended_false_per_day"], row["recommended_ms"], row["longest_gap_ms"])
        ),
        "a longer timeout has no more false expiries": lambda row: (
            row["recommended_ms"] is None
            or (row["recommended_ms"] >= row["session_timeout_ms"])
            <= (row["recommended_false_per_day"] <= row["false_expiries_per_day"])
        ),
        "longest_gap_ms >= longest_kept_ms": lambda row: row["longest_gap_ms"] >= row["longest_kept_ms"] >= 0,
    },
    "advisor": {
        **_ANY_ASSIGNMENT,
        "paused_units >= moves": lambda row: row["paused_units"] >= row["moves"],
        "units of all rounds >= paused_units": lambda row: row["units"] * max(row["rounds"], 1) >= row["paused_units"],
    },
    "what_ifs": {
        f"{name} >= 0": _not_negative(name)
        for name in ("rebalances", "join_phases", "moves", "paused_unit_ms", "waiting_unit_ms", "false_expiries")
    },
}
"""By table."""
_NAMES = {table: [column.name for column in GOLD[table].columns] for table in RULES}


def _agrees(false_per_day: float, timeout_ms: int, longest_gap_ms: int) -> bool:
    """A timeout has false expiries if, and only if, a silence was longer than it."""
    return bool((false_per_day > 0) == (longest_gap_ms > timeout_ms))


def broken_rules(table: str, values: tuple[Any, ...]) -> Iterator[str]:
    """The rules that a row of this table breaks, each with the row; none for a row that could not be computed."""
    if table not in RULES:
        return
    row = dict(zip(_NAMES[table], values, strict=True))
    if row.get("units", 0) is None:
        return
    for rule, keeps in RULES[table].items():
        if not keeps(row):
            said = ", ".join(f"{name} {row[name]}" for name in _NAMES[table] if isinstance(row[name], int | float))
            yield f"{table}: {rule} does not hold: {said}"
