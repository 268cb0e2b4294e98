"""Which session timeout a group should have: from how regularly its members were heard.

A timeout costs on both sides. Too short, and a member that is only late is expired, and the group rebalances for
nothing; too long, and the share of a dead one waits. The histograms of gaps say how often each would have happened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rota.group.gaps import CLASSES, class_end_ms
from rota.pipeline.events import ddl
from rota.pipeline.lake import Lake
from rota.pipeline.tables import GOLD

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALLOWED_PER_DAY = 0.01
"""False expiries a member and day: one member in a hundred, once a day."""
LEAST_MS = 1_000
_FEWEST_GAPS = 500
"""With fewer than that, the histogram says little about rare gaps."""
_HEADROOM = 1.5
"""Nobody can promise that the longest gap was seen already."""


@dataclass(frozen=True, slots=True)
class Advice:
    """For one group. `false_expiries_per_day` are expected per member; None where too little is known."""

    namespace: str
    group_id: str
    session_timeout_ms: int
    recommended_ms: int | None
    gaps: int
    longest_gap_ms: int
    false_expiries_per_day: float
    recommended_false_per_day: float | None
    detection_saved_ms: int


def recommend(group: dict[str, Any], allowed_per_day: float = ALLOWED_PER_DAY) -> Advice:
    """From the sum of a group's histograms. `member_days` is for how long members were counted, summed up."""
    histogram, current = list(group["gaps"]), int(group["session_timeout_ms"])
    total, days = sum(histogram), max(group["member_days"], 1e-9)
    longest = int(group["max_gap_ms"] or 0)
    known = total >= _FEWEST_GAPS
    wanted = None
    if known:
        wanted = _round_up(max(LEAST_MS, int(_HEADROOM * _shortest(histogram, days, allowed_per_day, longest))))
    return Advice(
        namespace=group["namespace"],
        group_id=group["group_id"],
        session_timeout_ms=current,
        recommended_ms=wanted,
        gaps=total,
        longest_gap_ms=longest,
        false_expiries_per_day=_longer_than(histogram, current) / days,
        recommended_false_per_day=None if wanted is None else _longer_than(histogram, wanted) / days,
        detection_saved_ms=0 if wanted is None else current - wanted,
    )


def advise_timeouts(spark: SparkSession, lake: Lake, allowed_per_day: float = ALLOWED_PER_DAY) -> list[Advice]:
    """For every group that there are statistics of, those first that expire members for nothing."""
    from pyspark.sql import functions as F

    uris = lake.gold("heartbeats").uris()
    if not uris:
        return []
    frame = spark.read.schema(ddl(GOLD["heartbeats"].schema)).parquet(*uris)
    span_s = F.unix_timestamp("to_at") - F.unix_timestamp("from_at")
    sums = [F.sum(F.col("gaps")[number]).alias(f"g{number}") for number in range(CLASSES)]
    rows = (
        frame.groupBy("namespace", "group_id")
        .agg(
            F.max_by("session_timeout_ms", "to_at").alias("session_timeout_ms"),
            F.max("max_gap_ms").alias("max_gap_ms"),
            (F.sum(span_s) / 86_400).alias("member_days"),
            *sums,
        )
        .collect()
    )
    groups = [{**row.asDict(), "gaps": [row[f"g{number}"] for number in range(CLASSES)]} for row in rows]
    found = [recommend(group, allowed_per_day) for group in groups]
    return sorted(found, key=lambda a: (-a.false_expiries_per_day, -a.detection_saved_ms, a.namespace, a.group_id))


def _shortest(histogram: list[int], days: float, allowed_per_day: float, longest_ms: int) -> int:
    """The shortest timeout that no more than the allowed number of gaps exceed."""
    exceeding = 0
    for number in range(len(histogram) - 1, -1, -1):
        exceeding += histogram[number]
        if exceeding > allowed_per_day * days:
            return min(class_end_ms(number) + 1, longest_ms + 1)
    return LEAST_MS


def _longer_than(histogram: list[int], timeout_ms: int) -> int:
    return sum(count for number, count in enumerate(histogram) if class_end_ms(number) > timeout_ms)


def _round_up(timeout_ms: int) -> int:
    step = 500 if timeout_ms < 10_000 else 1_000 if timeout_ms < 60_000 else 5_000
    return -(-timeout_ms // step) * step
