"""Moments as people read them."""

from __future__ import annotations

import time

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"))


def ago(at_ms: int) -> str:
    """How long ago something was, by this machine's clock: `3s ago`, `2h ago`."""
    seconds = max(0, round(time.time() - at_ms / 1000))
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds // size}{unit} ago"
    return f"{seconds}s ago"
