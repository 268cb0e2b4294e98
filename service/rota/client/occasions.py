"""Once per occasion: a group stores the due time of its last occasion's work as fenced progress.

Two starts of a schedule belong to one occasion if they are less than half of its period apart. So hosts with different
clocks, or with a late start, agree on the occasion without a shared clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from rota.client.options import DAY, to_ms
from rota.protocol.limits import MAX_RETENTION_TIME_MS
from rota.protocol.messages import FetchedOffset, OffsetToCommit, TopicPartitions

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._:-]+")
_MAX_NAME_CHARS = 200


@dataclass(frozen=True, slots=True)
class Occasions:
    """The occasions of one schedule within a group. Times are seconds since 1970, by the wall clock."""

    name: str
    """Distinguishes several schedules of one group; characters that are invalid in topics become hyphens."""
    period: float
    """The shortest time between two occasions."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for a period that is not positive."""
        if self.period <= 0:
            raise ValueError(f"the period of an occasion must be above 0, not {self.period} s")

    def asked(self) -> TopicPartitions:
        """Return the partitions whose progress `is_due` needs."""
        return TopicPartitions(self._topic, (0,))

    def is_due(self, fetched: Iterable[FetchedOffset], due: float) -> bool:
        """Return whether the work due at `due` belongs to an occasion that is not done yet."""
        last_ms = max((each.offset for each in fetched if each.topic == self._topic), default=-1)
        return last_ms < 0 or to_ms(due) - last_ms >= to_ms(self.period) / 2

    def done(self, due: float) -> OffsetToCommit:
        """Return the progress to commit for work that was due then. The group keeps it for at least two periods."""
        kept_ms = min(to_ms(max(2 * self.period, DAY)), MAX_RETENTION_TIME_MS)
        return OffsetToCommit(self._topic, 0, to_ms(due), retention_time_ms=kept_ms)

    @property
    def _topic(self) -> str:
        return "occasions." + _NOT_IN_NAMES.sub("-", self.name)[:_MAX_NAME_CHARS]
