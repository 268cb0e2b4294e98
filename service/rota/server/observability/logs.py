"""Log lines on standard error: JSON for machines, text for people. Only the standard library's logging."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal, TextIO

from rota.server.observability.timeline import printable

LogFormat = Literal["text", "json"]

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}

_CHATTY = ("alembic", "asyncio", "uvicorn.error")
"""Libraries whose lines at level INFO repeat those of Rota."""


class JsonFormatter(logging.Formatter):
    """One JSON object per line. The values of `extra=` become separate fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": _rfc3339(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update({name: value for name, value in vars(record).items() if name not in _STANDARD})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """`12:00:00.123 info rota.server: message`, followed by the extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        extra = "".join(f" {name}={value}" for name, value in vars(record).items() if name not in _STANDARD)
        at = _rfc3339(record.created)[11:23]
        text = printable(f"{at} {record.levelname.lower()} {record.name}: {record.getMessage()}{extra}")
        if not record.exc_info:
            return text
        # Indented, so that no line of an error's text looks like a line of the log.
        trace = self.formatException(record.exc_info).splitlines()
        return "\n".join((text, *(f"  {printable(line)}" for line in trace)))


def configure_logging(log_format: LogFormat, level: str = "info", stream: TextIO | None = None) -> None:
    """Send all log lines of this process to `stream`, by default standard error."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    quiet_libraries(level)


def quiet_libraries(level: str = "info") -> None:
    """Suppress lines that libraries write for each message of a client: a client may send any number."""
    for name in _CHATTY:
        logging.getLogger(name).setLevel("DEBUG" if level.lower() == "debug" else "WARNING")
    if level.lower() != "debug":
        # It logs a warning for each invalid message of a client.
        logging.getLogger("uvicorn.error").setLevel("ERROR")
        # gRPC's core does so on standard error. It reads this variable when its first channel or server is created.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_ours)


def _is_ours(record: logging.LogRecord) -> bool:
    """Return whether gRPC's line is about the server, not about a client's message or a closed connection.

    It writes a traceback for each header that is no UTF-8, and quotes its content, including credentials.
    """
    return not str(record.msg).startswith(("Invalid encoding on", "ExecuteBatchError raised in core"))


def _rfc3339(created: float) -> str:
    milliseconds = int(created * 1000) % 1000
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created)) + f".{milliseconds:03d}Z"


# --- lines about rejected callers: bounded, because callers choose their number --------------------

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
