"""Times and durations as people read and write them."""

from __future__ import annotations

import re
import time
from datetime import datetime

from rota.cli.exits import CommandFailed, Exit

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"))
_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SPAN = re.compile(r"([0-9]{1,18})([smhd])")


def ago(at_ms: int) -> str:
    """Return how long ago a moment was, by this machine's clock: `3s ago`, `2h ago`."""
    return f"{_span(time.time() - at_ms / 1000)} ago"


def until(at_ms: int) -> str:
    """Return the time until a moment, by this machine's clock: `in 3s`, `in 89d`."""
    return f"in {_span(at_ms / 1000 - time.time())}"


def span_ms(text: str) -> int | None:
    """Convert `90s`, `15m`, `12h` or `30d` to milliseconds; None for any other text."""
    matched = _SPAN.fullmatch(text)
    return None if matched is None else int(matched[1]) * _UNITS_MS[matched[2]]


def milliseconds(span: str) -> int:
    """Convert `90s`, `20m` or `2h` to milliseconds; raise a usage error for any other text."""
    found = span_ms(span)
    if not found:
        raise CommandFailed(f"{span!r} is no time such as 90s, 20m or 2h", Exit.USAGE)
    return found


def since_ms(text: str | None) -> int:
    """Return the moment of `--since`: a duration ago, or an ISO 8601 time, local without a zone; 0 for None."""
    if text is None:
        return 0
    if (ms := span_ms(text)) is not None:
        return int(time.time() * 1_000) - ms
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1_000)
    except (ValueError, OverflowError, OSError):
        message = f"--since must be like 30d, 12h, 15m, 90s or 2026-11-24T07:00, not {text!r}"
        raise CommandFailed(message, Exit.USAGE) from None


def _span(seconds: float) -> str:
    whole = max(0, round(seconds))
    for size, unit in _UNITS:
        if whole >= size:
            return f"{whole // size}{unit}"
    return f"{whole}s"
