"""What a run of a fuzzer must never see: tracebacks, memory that grows, CPU time without a bound."""

from __future__ import annotations

import gc
import logging
import traceback
from types import TracebackType
from typing import Self

import psutil

MOST_CPU_S = 0.1
"""CPU time of the thread that serves, for one case: so long, at most, the case has kept its event loop from others.

It is CPU time, not time on the wall, so that a busy machine counts for nothing."""
MOST_GROWTH_MIB = 64
"""Growth of the process between the end of the warm-up and the end of the run."""


class Tracebacks(logging.Handler):
    """While open, keeps records with an exception, and records of level ERROR, by any logger."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._found: list[str] = []

    def __enter__(self) -> Self:
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        logging.getLogger().removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            lines = traceback.format_exception(record.exc_info[1])
            self._found.append(f"{record.name}: {record.getMessage()}\n{''.join(lines)}")
        elif record.levelno >= logging.ERROR:
            self._found.append(f"{record.name}: {record.getMessage()}")

    def take(self) -> list[str]:
        """The findings since the last call."""
        found, self._found = self._found, []
        return found


def resident_mib() -> float:
    """Memory of this process, without garbage."""
    gc.collect()
    return float(psutil.Process().memory_info().rss) / 2**20
