"""Keeping the facts up to date: each refresh folds what is new in bronze, exactly once.

A refresh is one commit a table, each with the number of the fold, and the carried states come last. So when a refresh
is killed, the states of the fold before are still there, and its plan says which batches it was folding: the next one
does just that again, and tables that have that number already are left alone. The result is the same, because folding
is deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rota.pipeline.breakpoints import breakpoint_at
from rota.pipeline.events import EVENTS, ddl, lines_of
from rota.pipeline.facts.units import load_decoder
from rota.pipeline.files import WRITTEN, TableWriter, Written
from rota.pipeline.fold import CARRIED, fold_lines
from rota.pipeline.lake import Lake
from rota.pipeline.tables import CARRY, FOLDED, GOLD
from rota.pipeline.tasks import told

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Mapper = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

GROUP = ("shard_id", "namespace", "group_id")


@dataclass(frozen=True, slots=True)
class Refreshed:
    """What one refresh came to: the fold's number, the batches it took in, and the rows that it added to each table."""

    fold: int
    to_batch: int
    rows: dict[str, int]


def refresh(spark: SparkSession, lake: Lake, *, decoder: str = "", build: str | None = None) -> Refreshed:
    """Fold the batches of bronze that are not in the facts yet, after finishing what a killed refresh began."""
    build = build or lake.build
    fold, folded_to = _standing(lake, build)
    unfinished = lake.plan(build, fold + 1)
    if unfinished is not None and _was_begun(lake, build, fold + 1):
        _fold_once(spark, lake, build, fold + 1, unfinished)
        fold, folded_to = fold + 1, int(unfinished["to_batch"])
    newest = lake.bronze.batch
    if newest <= folded_to:
        return Refreshed(fold, folded_to, {})
    plan = {"after_batch": folded_to, "to_batch": newest, "decoder": decoder}
    lake.write_plan(build, fold + 1, plan)
    return Refreshed(fold + 1, newest, _fold_once(spark, lake, build, fold + 1, plan))


def backfill(spark: SparkSession, lake: Lake, *, decoder: str = "") -> Refreshed:
    """Fold all of bronze in one slice, beside the facts that are there, and switch when all is done."""
    build = lake.next_build()
    lake.remove_build(build)
    done = refresh(spark, lake, decoder=decoder, build=build)
    breakpoint_at("gold: before the switch")
    lake.switch_to(build)
    lake.describe()
    return done


def _standing(lake: Lake, build: str) -> tuple[int, int]:
    """The last fold that is complete, and the last batch that it took in."""
    fold = lake.gold("carry", build).batch
    plan = lake.plan(build, fold) if fold else None
    return fold, int(plan["to_batch"]) if plan else 0


def _was_begun(lake: Lake, build: str, fold: int) -> bool:
    """Whether any table has rows of this fold. If not, it may as well take in what came since."""
    return any(lake.gold(table, build).batch >= fold for table in FOLDED)


def _fold_once(spark: SparkSession, lake: Lake, build: str, fold: int, plan: dict[str, Any]) -> dict[str, int]:
    lines = sliced(spark, lake, plan["after_batch"], plan["to_batch"])
    carried = carry_lines(spark, lake, build)
    everything = lines if carried is None else lines.unionByName(carried)
    folder = str(lake.gold("carry", build).path.parent)
    told_of = by_group(everything).mapInArrow(_folder(folder, fold, plan["decoder"]), ddl(WRITTEN)).collect()
    written = [Written(*row) for row in told_of]
    rows = {}
    for table in FOLDED:
        mine = [each for each in written if each.table == table]
        breakpoint_at("gold: before a table")
        lake.gold(table, build).commit(mine, fold)
        rows[table] = sum(each.rows for each in mine)
    breakpoint_at("gold: before the carry")
    lake.gold("carry", build).commit([each for each in written if each.table == "carry"], fold, replace=True)
    breakpoint_at("gold: after the carry")
    return rows


def sliced(spark: SparkSession, lake: Lake, after_batch: int, to_batch: int) -> DataFrame:
    """The lines of bronze that came with these batches."""
    from pyspark.sql import functions as F

    bronze = spark.read.schema(ddl(lake.bronze.schema)).parquet(*lake.bronze.uris())
    wanted = (F.col("ingest_batch") > after_batch) & (F.col("ingest_batch") <= to_batch)
    return bronze.where(wanted).select(*EVENTS.names)


def carry_lines(spark: SparkSession, lake: Lake, build: str) -> DataFrame | None:
    """The carried states as lines that come before all others of their group; None where nothing is carried yet."""
    from pyspark.sql import functions as F

    files = lake.gold("carry", build).uris()
    if not files:
        return None
    frame = spark.read.schema(ddl(CARRY.schema)).parquet(*files)
    given = {"kind": F.lit(CARRIED), "payload": F.col("state"), **{name: F.col(name) for name in (*GROUP, "seq")}}
    types = dict(each.replace("`", "").split(" ") for each in ddl(EVENTS).split(", "))
    columns = [given.get(name, F.lit(None).cast(type_)).alias(name) for name, type_ in types.items()]
    return frame.select(*columns)


def by_group(lines: DataFrame) -> DataFrame:
    """The lines of each group in one place and in order."""
    from pyspark.sql import functions as F

    sorted_ = [F.col(name) for name in (*GROUP, "seq")]
    # The carried state has the number of the last line that it stands for, so it sorts before what follows.
    return lines.repartition(_parts(lines), *GROUP).sortWithinPartitions(*sorted_)


def _parts(lines: DataFrame) -> int:
    """Enough tasks for all cores and some for those that are quicker. Spark Connect does not say how many there are."""
    from pyspark.sql.utils import is_remote

    if is_remote():
        return int(lines.sparkSession.conf.get("spark.sql.shuffle.partitions") or 4)
    return max(4, 2 * int(lines.sparkSession.sparkContext.defaultParallelism))


def _folder(folder: str, fold: int, decoder: str) -> Mapper:
    """What each task does: fold its groups, one after the other, into one file a table."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schemas = {**{table: GOLD[table].schema for table in FOLDED}, "carry": CARRY.schema}
        writer = TableWriter(folder, schemas, f"{fold:06}")
        decode = load_decoder(decoder) if decoder else None
        for key, group, rows in fold_lines(chain.from_iterable(map(lines_of, batches)), decode):
            for table, values in rows:
                writer.add(table, values)
            writer.add("carry", (*key, group.last_seq, group.dump()))
        yield told(writer.close())

    return run
