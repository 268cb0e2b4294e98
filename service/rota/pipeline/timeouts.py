"""The session timeouts that are advised today, read from the table of advice."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rota.pipeline.facts.timeouts import ALLOWED_PER_DAY, Silences, recommend
from rota.pipeline.lake import Lake, Snapshot
from rota.pipeline.what_ifs import Known

if TYPE_CHECKING:
    from pyspark.sql import Row


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


def advise_timeouts(lake: Lake, allowed_per_day: float = ALLOWED_PER_DAY) -> list[GroupAdvice]:
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
        for row in _latest(Snapshot(lake))
    ]
    return sorted(
        found, key=lambda a: (-a.false_expiries_per_day, -(a.detection_saved_ms or 0), a.namespace, a.group_id)
    )


def known_silences(tables: Snapshot) -> dict[tuple[str, str], Known]:
    """By namespace and group: the session timeout, and the silences of all members up to the last line."""
    return {(row.namespace, row.group_id): Known(row.session_timeout_ms, _silences(row)) for row in _latest(tables)}


def _latest(tables: Snapshot) -> list[Row]:
    """Each group's last row, which counts all silences since the group was made."""
    rows = tables.everything("timeout_advice")
    rows.createOrReplaceTempView("all_timeout_advice")
    return rows.sparkSession.sql(LATEST.format(view="all_timeout_advice")).collect()


def _silences(row: Row) -> Silences:
    late = dict(zip(row.late_ms, row.late, strict=True))
    return Silences(row.gaps, row.longest_kept_ms, late, row.longest_gap_ms, row.member_ms)
