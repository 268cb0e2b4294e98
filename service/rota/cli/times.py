"""Moments as people read them."""

from __future__ import annotations

import time

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"))


def ago(at_ms: int) -> str:
    """How long ago something was, by this machine's clock: `3s ago`, `2h ago`."""
    return f"{_span(time.time() - at_ms / 1000)} ago"


def until(at_ms: int) -> str:
    """How soon something will be, by this machine's clock: `in 3s`, `in 89d`."""
    return f"in {_span(at_ms / 1000 - time.time())}"


def _span(seconds: float) -> str:
    whole = max(0, round(seconds))
    for size, unit in _UNITS:
        if whole >= size:
            return f"{whole // size}{unit}"
    return f"{whole}s"
