"""Log lines about refused callers: bounded for each source and in all, for callers choose how many there are."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

PER_SOURCE = 5
"""Lines of one source in a second."""
IN_ALL = 20
"""Lines of all sources in a second."""


class RefusalLog:
    """Writes at most so many lines a second. The next one that is written counts those that were left out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_source, self.in_all = PER_SOURCE, IN_ALL
        self.over_budget: Callable[[], object] = lambda: None
        self._clock = clock
        self._second = 0
        self._written: Counter[str] = Counter()
        """Of this second, by source. It holds no more sources than lines may be written."""
        self._left_out = 0

    def write(self, log: logging.Logger, message: str, source: str, **fields: object) -> bool:
        """Write a line with these fields, unless the source or all of them have had theirs; whether it was written."""
        second = int(self._clock())
        if second != self._second:
            self._second = second
            self._written.clear()
        if self._written.total() >= self.in_all or self._written[source] >= self.per_source:
            self._left_out += 1
            self.over_budget()
            return False
        self._written[source] += 1
        if self._left_out:
            fields["left_out"], self._left_out = self._left_out, 0
        log.warning(message, extra=fields)
        return True


_lines = RefusalLog()
"""One for the process, as its log is one."""


def bound_refusals(per_source: int, in_all: int, over_budget: Callable[[], object]) -> None:
    """Set the bounds of the process, in lines a second; `over_budget` is called for each line that is left out."""
    _lines.per_source, _lines.in_all, _lines.over_budget = per_source, in_all, over_budget


def log_refusal(log: logging.Logger, message: str, source: str, **fields: object) -> bool:
    """As `RefusalLog.write`, with the bounds of the process."""
    return _lines.write(log, message, source, **fields)
