"""The session timeouts that are advised today, read from the table of advice."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pydantic_core import from_json

from rota.pipeline.facts.timeouts import ALLOWED_PER_DAY, Silences, Timeouts, recommend
from rota.pipeline.frames import everything
from rota.pipeline.lake import Lake, Moment
from rota.pipeline.places import read_file
from rota.pipeline.tables import TIMEOUT_ADVICE
from rota.pipeline.what_ifs import Known

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession


class GroupAdvice(NamedTuple):
    """For one group, as the columns of the table say; `gaps` and `late` are how many there were."""

    namespace: str
    group_id: str
    session_timeout_ms: int
    recommended_ms: int | None
    gaps: int
    late: int
    longest_gap_ms: int
    false_expiries_per_day: float
    recommended_false_per_day: float | None
    detection_saved_ms: int | None


LATEST = """SELECT last.* FROM (
    SELECT max_by(struct(*), at) AS last FROM {view} GROUP BY namespace, group_id)"""
"""Each group's last row."""


def advise_timeouts(spark: SparkSession, lake: Lake, allowed_per_day: float = ALLOWED_PER_DAY) -> list[GroupAdvice]:
    """For every group that there are statistics of, those first that expire members for nothing."""
    found = [
        GroupAdvice(
            namespace=row.namespace,
            group_id=row.group_id,
            session_timeout_ms=row.session_timeout_ms,
            gaps=sum(row.gaps),
            late=sum(row.late),
            longest_gap_ms=row.longest_gap_ms,
            # The stored value is for the default; the sums are there for any other.
            **recommend(_silences(row), row.session_timeout_ms, allowed_per_day)._asdict(),
        )
        for row in _latest(spark, lake)
    ]
    return sorted(
        found, key=lambda a: (-a.false_expiries_per_day, -(a.detection_saved_ms or 0), a.namespace, a.group_id)
    )


def known_silences(lake: Lake) -> dict[tuple[str, str], Known]:
    """By namespace and group what the facts say of it: for what-ifs. Spark takes seconds for what this does at once."""
    moment = lake.moment()
    found: dict[tuple[str, str], tuple[int, Known]] = {}
    for group, at_us, known in chain(_closed(moment), _open(moment)):
        if group not in found or found[group][0] <= at_us:
            found[group] = at_us, known
    return {group: known for group, (_, known) in found.items()}


def _closed(moment: Moment) -> Iterator[tuple[tuple[str, str], int, Known]]:
    """The last row of each group in each file, with its time in microseconds."""
    for uri in moment.fact_files("timeout_advice"):
        rows = read_file(uri, schema=TIMEOUT_ADVICE.schema).sort_by("at")
        groups = zip(rows.column("namespace").to_pylist(), rows.column("group_id").to_pylist(), strict=True)
        last = {group: place for place, group in enumerate(groups)}
        chosen = rows.take(list(last.values()))
        times = chosen.column("at").cast(pa.int64()).to_pylist()
        for group, at_us, values in zip(last, times, chosen.to_pylist(), strict=True):
            row = SimpleNamespace(**values)
            yield group, at_us, Known(row.session_timeout_ms, _silences(row))


def _open(moment: Moment) -> Iterator[tuple[tuple[str, str], int, Known]]:
    """What is known of each group by its carried state, with the time of the last line that it was counted by."""
    for uri in moment.fact_files("carry"):
        carried = read_file(uri, columns=["namespace", "group_id", "state"])
        for namespace, group_id, state in zip(*(column.to_pylist() for column in carried.columns), strict=True):
            of_timeouts = from_json(state)["facts"].get("timeouts")
            if of_timeouts and of_timeouts["session_timeout_ms"]:
                known = Known(of_timeouts["session_timeout_ms"], Timeouts(of_timeouts).silences)
                yield (namespace, group_id), of_timeouts["at_ms"] * 1000, known


def _latest(spark: SparkSession, lake: Lake) -> list[Row]:
    everything(spark, lake.moment(), "timeout_advice").createOrReplaceTempView("all_timeout_advice")
    return spark.sql(LATEST.format(view="all_timeout_advice")).collect()


def _silences(row: Row | SimpleNamespace) -> Silences:
    late = dict(zip(row.late_ms, row.late, strict=True))
    return Silences(row.gaps, row.longest_kept_ms, late, row.longest_gap_ms, row.member_ms)
