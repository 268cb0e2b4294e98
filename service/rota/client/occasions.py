"""Once per occasion: a group remembers when the work of its last occasion was due, as progress behind its fence.

Two starts of a schedule belong to one occasion if they are less than half of the schedule's period apart. So hosts
with different clocks, or with a late start, agree on the occasion without a clock that they share.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from rota.client.seconds import DAY, to_ms
from rota.protocol.limits import MAX_RETENTION_TIME_MS
from rota.protocol.messages import FetchedOffset, OffsetToCommit, TopicPartitions

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._:-]+")
_MAX_NAME_CHARS = 200


@dataclass(frozen=True, slots=True)
class Occasions:
    """The occasions of one schedule within a group. Times are seconds, those of the wall clock since 1970."""

    name: str
    """What distinguishes several schedules of one group; characters that no topic may have become hyphens."""
    period: float
    """The shortest time between two occasions."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for a period that is not positive."""
        if self.period <= 0:
            raise ValueError(f"the period of an occasion must be above 0, not {self.period} s")

    def asked(self) -> TopicPartitions:
        """The progress to fetch for `is_due`."""
        return TopicPartitions(self._topic, (0,))

    def is_due(self, fetched: Iterable[FetchedOffset], due: float) -> bool:
        """Whether the work that is due at `due` belongs to an occasion that has not been done."""
        last_ms = max((each.offset for each in fetched if each.topic == self._topic), default=-1)
        return last_ms < 0 or to_ms(due) - last_ms >= to_ms(self.period) / 2

    def done(self, due: float) -> OffsetToCommit:
        """The progress to commit for work that was due then. The group keeps it for two periods at least."""
        kept_ms = min(to_ms(max(2 * self.period, DAY)), MAX_RETENTION_TIME_MS)
        return OffsetToCommit(self._topic, 0, to_ms(due), retention_time_ms=kept_ms)

    @property
    def _topic(self) -> str:
        return "occasions." + _NOT_IN_NAMES.sub("-", self.name)[:_MAX_NAME_CHARS]
