"""The period of a report: from when to when, on one clock, whatever the clocks of single replicas said."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil

AHEAD = timedelta(minutes=5)
"""By so much the clocks of replicas may be ahead of the clock of the machine that reads their lines."""
_UNITS = {"min": "minutes", "h": "hours", "d": "days"}


@dataclass(frozen=True, slots=True)
class Period:
    """Times are UTC, without a zone, as literals of Spark are in our sessions."""

    begin: datetime
    end: datetime
    """The journal's end: open rows are judged at this moment."""
    latest: datetime
    """No line can be later: it had been read by then. What bears a later time was written by a clock that is ahead."""

    @property
    def is_long(self) -> bool:
        """Whether times of day alone would be ambiguous."""
        return self.end - self.begin > timedelta(days=2)

    def bins(self, most: int) -> tuple[float, int]:
        """The period cut into at most so many parts, of a second at least: how many seconds each has, and how many."""
        span = max((self.end - self.begin).total_seconds(), 1.0)
        seconds = max(1.0, span / most)
        return seconds, min(most, max(1, ceil(span / seconds)))


def period(first: datetime | None, last: datetime | None, latest: datetime, since: datetime | timedelta) -> Period:
    """The period from `since`, a moment or a time before the end; it never begins before the first fact."""
    end = min(last or latest, latest)
    begin = end - since if isinstance(since, timedelta) else min(since, end)
    return Period(max(begin, first) if first is not None and first < end else begin, end, latest)


def parse_since(text: str) -> datetime | timedelta:
    """`2026-11-24T08:00` (UTC unless it names a zone), or a time before the end: `90min`, `2h`, `7d`.

    Raises ValueError for anything else.
    """
    if found := re.fullmatch(r"(\d+(?:\.\d+)?) ?(min|h|d)", text.strip()):
        return timedelta(**{_UNITS[found[2]]: float(found[1])})
    at = datetime.fromisoformat(text.strip())
    return at if at.tzinfo is None else at.astimezone(UTC).replace(tzinfo=None)


def ms_of(at: datetime) -> int:
    """A moment in UTC as the journal has it."""
    return round(at.replace(tzinfo=UTC).timestamp() * 1000)


def moment(ms: int) -> datetime:
    """The other way."""
    return datetime.fromtimestamp(ms / 1000, UTC).replace(tzinfo=None)


def latest_line(read_at: float | None, now: float) -> datetime:
    """No line is later than this. `read_at`: when the last lines were read, where that is known."""
    moment = min(now, read_at) if read_at is not None else now
    return datetime.fromtimestamp(moment, UTC).replace(tzinfo=None) + AHEAD
