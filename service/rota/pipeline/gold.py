"""Keeping the facts up to date: each refresh folds the new lines of bronze, exactly once.

A refresh is one commit a table, each with the number of the fold, and the carried states come last. So when a refresh
is killed, the states of the fold before are still there, and its plan says which batches it was folding: the next one
does just that again, and tables that have that number already are left alone. The result is the same, because folding
is deterministic. A table that a fold has no rows for has no commit of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from rota.pipeline.breakpoints import breakpoint_at
from rota.pipeline.committed import COMMITS
from rota.pipeline.current import BY_GROUP, current_rows
from rota.pipeline.events import EVENTS, ddl, lines_of
from rota.pipeline.facts.offset_columns import COMMIT_COLUMNS, Ends, fold_offsets, refuse_unreadable, telling_commits
from rota.pipeline.facts.units import Decoders, load_decoders
from rota.pipeline.failures import LakeRefused
from rota.pipeline.files import TableWriter, Written
from rota.pipeline.fold import GroupFold, Key
from rota.pipeline.lake import FOLDS, Lake
from rota.pipeline.places import read_file
from rota.pipeline.slices import Slice, bucket_of, in_order
from rota.pipeline.spark_files import frame_of
from rota.pipeline.tables import BRONZE, CARRY, CURRENT, CURRENT_OFFSETS, FOLDED, GOLD, OFFSETS, Table
from rota.pipeline.tasks import Task, Workers, run_tasks, task_count

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GROUP = ("shard_id", "namespace", "group_id")

Carried = Mapping[str, Mapping[int, str]]
"""By table and bucket: the file of carried states."""

_INGESTED = pa.schema([*EVENTS, BRONZE.schema.field("ingest_batch")])
FEW_LINES = 50_000
"""So many are folded in this process, sooner than Spark has planned a job."""
MOST_LINES = 4_000_000
"""What the tasks of a fold hold of all lines at a time: the facts do not depend on where they are cut."""
_BUCKET = re.compile(r"-b(\d+)-")


@dataclass(frozen=True, slots=True)
class Refreshed:
    """What one refresh came to: the fold's number, the batches it took in, and the rows that it added to each table."""

    fold: int
    to_batch: int
    rows: dict[str, int]


def refresh(workers: Workers, lake: Lake, *, decoder: str = "") -> Refreshed:
    """Fold the batches of bronze that are not in the facts yet, after finishing what a killed refresh began."""
    fold, folded_to = _finished(workers, lake)
    newest = lake.bronze.batch
    if newest <= folded_to:
        return Refreshed(fold, folded_to, {})
    plan = {"after_batch": folded_to, "to_batch": newest, "decoder": decoder, "anew": False}
    lake.write_plan(FOLDS, fold + 1, plan)
    return Refreshed(fold + 1, newest, _fold_once(workers, lake, fold + 1, plan))


def backfill(workers: Workers, lake: Lake, *, decoder: str = "", forget_dropped: bool = False) -> Refreshed:
    """Fold all of bronze in one slice; the rows take the place of those that are there, when all is done.

    Readers have the tables of the fold before until then. Where lines that facts were made of are no longer in bronze,
    it raises `LakeRefused`, unless asked to forget these facts.
    """
    if not forget_dropped:
        refuse_if_beheaded(lake)
    fold, _ = _finished(workers, lake)
    newest = lake.bronze.batch
    plan = {"after_batch": 0, "to_batch": newest, "decoder": decoder, "anew": True}
    lake.write_plan(FOLDS, fold + 1, plan)
    rows = _fold_once(workers, lake, fold + 1, plan)
    lake.describe()
    return Refreshed(fold + 1, newest, rows)


def refuse_if_beheaded(lake: Lake) -> None:
    """Raise `LakeRefused` if bronze lacks lines from its beginning: facts were made of them, and cannot be again."""
    first, began = first_lines(lake), lake.began()
    gone = {shard_id: seq for shard_id, seq in first.items() if seq > began.shards.get(shard_id, 0) + 1}
    if gone or (lake.bronze.batch and not first):
        named = "; ".join(f"shard {shard_id} begins at line {gone[shard_id]:,}" for shard_id in sorted(gone)[:3])
        raise LakeRefused(
            f"lines that facts were made of have been dropped from bronze ({named or 'no line is left'}): folding anew "
            "would lose these facts for good. The tables are as they were: copy the facts that you want to keep, then "
            "`--forget-dropped` folds the remaining lines"
        )


def first_lines(lake: Lake) -> dict[int, int]:
    """The number of each shard's first line that is still in bronze."""
    first: dict[int, int] = {}
    for uri in lake.bronze.uris():
        lines = read_file(uri, columns=["shard_id", "seq"])
        found = lines.group_by("shard_id").aggregate([("seq", "min")]).to_pydict()
        for shard_id, seq in zip(found["shard_id"], found["seq_min"], strict=True):
            first[shard_id] = min(seq, first.get(shard_id, seq))
    return first


def _finished(workers: Workers, lake: Lake) -> tuple[int, int]:
    """The last fold and the last batch that it took in, once what a killed fold began is done."""
    fold = lake.gold("carry").batch
    folded_to = lake.folded_to(fold)
    unfinished = lake.plan(FOLDS, fold + 1)
    if unfinished is None or not _was_begun(lake, fold + 1):
        return fold, folded_to
    _fold_once(workers, lake, fold + 1, unfinished)
    return fold + 1, int(unfinished["to_batch"])


def _was_begun(lake: Lake, fold: int) -> bool:
    """Whether any table has rows of this fold. If not, it may as well take in what came since."""
    return any(lake.gold(table).batch >= fold for table in (*FOLDED, *CURRENT))


def _fold_once(workers: Workers, lake: Lake, fold: int, plan: Mapping[str, Any]) -> dict[str, int]:
    lines = Slice.of(lake, plan["after_batch"], plan["to_batch"])
    carried = {table: {} for table in (*CURRENT, "carry")} if plan["anew"] else _by_bucket(lake, fold - 1)
    workers = workers if lines.most_lines > FEW_LINES else None
    parts = parts_of(lines.buckets, task_count(workers))
    task = _folder(lines, carried, parts, lake.gold("carry").folder, fold, plan["decoder"])
    written = run_tasks(workers, len(parts), task)
    changed = {_bucket(each.path) for each in written if each.table == "carry"}
    rows = {}
    for table in FOLDED:
        mine = [each for each in written if each.table == table]
        if mine or plan["anew"]:
            breakpoint_at("gold: before a table")
            lake.gold(table).commit(mine, fold, replace=plan["anew"])
        rows[table] = sum(each.rows for each in mine)
    for table in (*CURRENT, "carry"):
        if table == "carry":
            breakpoint_at("gold: before the carry")
        mine = [each for each in written if each.table == table]
        former = [uri.rpartition("/")[2] for bucket, uri in carried[table].items() if bucket in changed]
        if mine or former or plan["anew"]:
            lake.gold(table).commit(mine, fold, replace=plan["anew"], replaced=former)
    breakpoint_at("gold: after the carry")
    return rows


def _by_bucket(lake: Lake, fold: int) -> dict[str, dict[int, str]]:
    """By table and bucket: the file of carried states after this fold."""
    return {
        table: {_bucket(each.name): each.uri for each in lake.gold(table).files(fold)} for table in (*CURRENT, "carry")
    }


def parts_of(buckets: Sequence[int], most: int) -> list[list[int]]:
    """The buckets in up to so many parts of one size, neighbours together."""
    count = min(most, len(buckets))
    bounds = [len(buckets) * number // count for number in range(count + 1)] if count else []
    return [list(buckets[first:end]) for first, end in pairwise(bounds)]


def _bucket(name: str) -> int:
    """Which bucket a file of carried states is of."""
    found = _BUCKET.search(name)
    assert found is not None, name
    return int(found.group(1))


def _folder(
    lines: Slice, carried: Carried, parts: Sequence[Sequence[int]], folder: str, fold: int, decoder: str
) -> Task:
    """What each task does: fold the groups of its buckets, into one file a table and one a bucket for their states."""

    def run(number: int) -> list[Written]:
        share = _Share(carried, parts[number], load_decoders(decoder))
        writer = TableWriter(folder, {table: GOLD[table].schema for table in FOLDED}, f"{fold:06}")
        for chunk in lines.chunks(MOST_LINES):
            others = chunk.read(parts[number], EVENTS.names, commits=False)
            commits = chunk.read(parts[number], COMMIT_COLUMNS, commits=True)
            refuse_unreadable(commits)
            for table, values in share.fold(others, commits):
                writer.add(table, values)
            for batch in share.fold_offsets(others, commits).to_batches():
                writer.write("offsets", batch)
        return [*writer.close(), *share.write(folder, f"{fold:06}")]

    return run


class _Share:
    """The groups of one task: those that have lines in the slice, and the carried states of their buckets."""

    def __init__(self, files: Carried, buckets: Sequence[int], decoders: Decoders) -> None:
        self._files = files
        self._buckets = buckets
        self._decoders = decoders
        self._carried: dict[int, dict[Key, tuple[int, str]]] = {}
        """By bucket that has changed: the number of the last line of each group, and its state after it."""
        self._groups: dict[Key, GroupFold] = {}
        self._open_offsets: dict[int, pa.Table] = {}
        """By bucket that has changed."""

    def fold(self, others: pa.Table, commits: pa.Table) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Take these lines in, which follow those before; gives the rows that they close, but those of offsets."""
        telling = commits.filter(pa.array(telling_commits(others, commits)))
        lines = pa.concat_tables([others.select(EVENTS.names), _as_lines(telling)])
        ordered = chain.from_iterable(map(lines_of, in_order(lines).to_batches()))
        for key, of_group in groupby(ordered, key=itemgetter(0, 4, 5)):
            group = self._groups.get(key) or self._resumed(key)
            for line in of_group:
                yield from group.add(line)
        last = commits.group_by(list(GROUP)).aggregate([("seq", "max")]).to_pylist()
        for each in last:
            self._groups[each["shard_id"], each["namespace"], each["group_id"]].seen(each["seq_max"])

    def fold_offsets(self, others: pa.Table, commits: pa.Table) -> pa.Table:
        """The rows about offsets that these lines close. After `fold`, by which the buckets are known that change."""
        for bucket in self._carried.keys() - self._open_offsets.keys():
            self._open_offsets[bucket] = _table(self._files["current_offsets"].get(bucket), CURRENT_OFFSETS.schema)
        if not self._open_offsets:
            return OFFSETS.schema.empty_table()
        closed, still_open = fold_offsets(commits, ends_of(others), pa.concat_tables(self._open_offsets.values()))
        bucket = bucket_of(still_open.column("shard_id").to_numpy())
        self._open_offsets = {each: still_open.filter(pa.array(bucket == each)) for each in self._open_offsets}
        return closed

    def write(self, folder: str, name: str) -> list[Written]:
        """The carried states of each bucket that has changed, those of its other groups included."""
        written = []
        for bucket, states in sorted(self._carried.items()):
            changed = {key: group for key, group in self._groups.items() if bucket_of(key[0]) == bucket}
            states |= {key: (group.last_seq, group.dump()) for key, group in changed.items()}
            schemas = {"carry": CARRY.schema, **{table: CURRENT[table].schema for table in CURRENT}}
            writer = TableWriter(folder, schemas, f"{name}-b{bucket:02}")
            for table, values in chain.from_iterable(current_rows(key, changed[key]) for key in sorted(changed)):
                writer.add(table, values)
            for each in BY_GROUP:
                for batch in self._unchanged(each, bucket, changed).to_batches():
                    writer.write(each.name, batch)
            for key, state in sorted(states.items()):
                writer.add("carry", (*key, *state))
            for batch in self._open_offsets[bucket].combine_chunks().to_batches():
                writer.write("current_offsets", batch)
            written += writer.close()
        return written

    def _unchanged(self, table: Table, bucket: int, changed: Collection[Key]) -> pa.Table:
        """The rows of the bucket's other groups, as they were."""
        rows = _table(self._files[table.name].get(bucket), table.schema)
        keys = zip(*(rows.column(name).to_pylist() for name in GROUP), strict=True)
        return rows.filter(pa.array([key not in changed for key in keys], pa.bool_()))

    def _resumed(self, key: Key) -> GroupFold:
        bucket = bucket_of(key[0])
        if bucket not in self._carried:
            files = self._files["carry"]
            self._carried[bucket] = _states(files[bucket]) if bucket in files else {}
        carried = self._carried[bucket].get(key)
        group = GroupFold(key[1], key[2], decoders=self._decoders, with_offsets=False)
        if carried is not None:
            group.resume(json.loads(carried[1]))
        self._groups[key] = group
        return group


def _as_lines(commits: pa.Table) -> pa.Table:
    """Commits as lines of which nothing but their place is looked at."""
    given = {"kind": COMMITS, "reason": "", "payload": "{}"}
    columns = [
        pa.array([given[name]] * len(commits), pa.string()) if name in given else commits.column(name)
        for name in EVENTS.names
    ]
    return pa.Table.from_arrays(columns, schema=EVENTS)


def ends_of(others: pa.Table) -> Ends:
    """The lines after which offsets are gone."""
    ends = Ends([], [])
    kinds = pa.array(["offsets_deleted", "group_deleted"])
    lines = others.filter(pc.is_in(others.column("kind"), kinds)).select(
        ["namespace", "group_id", "seq", "kind", "payload"]
    )
    for namespace, group_id, seq, kind, payload in zip(*(column.to_pylist() for column in lines.columns), strict=True):
        if kind == "group_deleted":
            ends.groups.append((namespace, group_id, seq))
            continue
        for topic, partition in json.loads(payload)["partitions"]:
            ends.partitions.append((namespace, group_id, seq, topic, partition))
    return ends


def _table(uri: str | None, schema: pa.Schema) -> pa.Table:
    return schema.empty_table() if uri is None else read_file(uri, schema=schema)


def _states(uri: str) -> dict[Key, tuple[int, str]]:
    table = read_file(uri)
    rows = zip(*(table.column(name).to_pylist() for name in CARRY.schema.names), strict=True)
    return {(shard_id, namespace, group_id): (seq, state) for shard_id, namespace, group_id, seq, state in rows}


# --- the lines for Spark: the audit reads them so ---------------------------------------------------------


def sliced(spark: SparkSession, lake: Lake, after_batch: int, to_batch: int) -> DataFrame:
    """The lines of bronze that came with these batches."""
    from pyspark.sql import functions as F

    lines = Slice.of(lake, after_batch, to_batch)
    if not lines.files:
        return spark.createDataFrame([], ddl(EVENTS))
    bronze = frame_of(spark, [each.uri for each in lines.files], _INGESTED)
    wanted = (F.col("ingest_batch") > after_batch) & (F.col("ingest_batch") <= to_batch)
    return bronze.where(wanted).select(*EVENTS.names)


def by_group(lines: DataFrame) -> DataFrame:
    """The lines of each group in one place and in order."""
    from pyspark.sql import functions as F

    sorted_ = [F.col(name) for name in (*GROUP, "seq")]
    return lines.repartition(task_count(lines.sparkSession), *GROUP).sortWithinPartitions(*sorted_)
