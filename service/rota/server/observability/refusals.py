"""Log lines about rejected callers: bounded for each source and in total, because callers choose their number."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

PER_SOURCE = 5
"""Maximum lines of one source per second."""
IN_ALL = 20
"""Maximum lines of all sources per second."""


class RefusalLog:
    """Writes a limited number of lines per second. The next written line has the number of suppressed ones."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_source, self.in_all = PER_SOURCE, IN_ALL
        self.over_budget: Callable[[], object] = lambda: None
        self._clock = clock
        self._second = 0
        self._written: Counter[str] = Counter()
        """Lines written in this second, by source. It has at most as many sources as lines."""
        self._left_out = 0

    def write(self, log: logging.Logger, message: str, source: str, **fields: object) -> bool:
        """Write a line with these fields, unless the source or all sources have reached their limit; return whether it
        was written.
        """
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
"""The process's single log."""


def bound_refusals(per_source: int, in_all: int, over_budget: Callable[[], object]) -> None:
    """Set the process's limits in lines per second; `over_budget` is called for each suppressed line."""
    _lines.per_source, _lines.in_all, _lines.over_budget = per_source, in_all, over_budget


def log_refusal(log: logging.Logger, message: str, source: str, **fields: object) -> bool:
    """Write as `RefusalLog.write` does, with the process's limits."""
    return _lines.write(log, message, source, **fields)
