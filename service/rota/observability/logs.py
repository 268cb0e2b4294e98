"""Log lines on standard error: JSON for machines, text for people. Only the standard library's logging."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from typing import Any, Literal, TextIO

from rota.observability.printable import printable

LogFormat = Literal["text", "json"]

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}

_CHATTY = ("alembic", "asyncio", "uvicorn.error")
"""Libraries that log at level INFO only what Rota logs itself."""


class JsonFormatter(logging.Formatter):
    """One JSON object a line. What a caller passes as `extra=` becomes fields of its own."""

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
    """`12:00:00.123 info rota.server: message`, with the extra fields behind it."""

    def format(self, record: logging.LogRecord) -> str:
        extra = "".join(f" {name}={value}" for name, value in vars(record).items() if name not in _STANDARD)
        at = _rfc3339(record.created)[11:23]
        text = printable(f"{at} {record.levelname.lower()} {record.name}: {record.getMessage()}{extra}")
        if not record.exc_info:
            return text
        # Indented, so that no line of an error's text looks like one of the log.
        trace = self.formatException(record.exc_info).splitlines()
        return "\n".join((text, *(f"  {printable(line)}" for line in trace)))


def configure_logging(log_format: LogFormat, level: str = "info", stream: TextIO | None = None) -> None:
    """Send everything that is logged in this process to `stream`, standard error unless given."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    quiet_libraries(level)


def quiet_libraries(level: str = "info") -> None:
    """Leave out what libraries write once for each thing that a client sends: a client may send it without end."""
    for name in _CHATTY:
        logging.getLogger(name).setLevel("DEBUG" if level.lower() == "debug" else "WARNING")
    if level.lower() != "debug":
        # It warns of what clients send, as often as they send it.
        logging.getLogger("uvicorn.error").setLevel("ERROR")
        # The same of gRPC's core, which writes to standard error by itself. It reads this when its first channel or
        # server is made.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_ours)


def _is_ours(record: logging.LogRecord) -> bool:
    """Whether gRPC's line is about the server, not about what a client has sent, or a client that has gone.

    It writes a traceback for each header that is no UTF-8 and quotes it, credentials as well.
    """
    return not str(record.msg).startswith(("Invalid encoding on", "ExecuteBatchError raised in core"))


def _rfc3339(created: float) -> str:
    milliseconds = int(created * 1000) % 1000
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created)) + f".{milliseconds:03d}Z"
