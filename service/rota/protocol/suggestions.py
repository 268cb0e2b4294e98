"""What to say about a name that does not exist: the name itself, and the nearest one that does."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

_MAX_SHOWN = 64
_MAX_KNOWN = 32
_LIKENESS = 0.5


def unknown(kind: str, name: str, known: Collection[str]) -> str:
    """`unknown field 'sesion_timeout_ms'; did you mean 'session_timeout_ms'?`; without a near one, those that exist."""
    said = f"unknown {kind} '{shown(name)}'"
    by_folded = {each.casefold(): each for each in known}
    near = get_close_matches(name[:_MAX_SHOWN].strip().casefold(), by_folded, n=1, cutoff=_LIKENESS)
    if near:
        return f"{said}; did you mean '{by_folded[near[0]]}'?"
    names = sorted(known)
    more = f" and {len(names) - _MAX_KNOWN} more" if len(names) > _MAX_KNOWN else ""
    return f"{said}; known are {', '.join(names[:_MAX_KNOWN])}{more}" if names else f"{said}; this call has none"


def shown(name: str) -> str:
    """A caller's own text as it may stand in a message: short, and without what does not print."""
    cut = name[:_MAX_SHOWN]
    return cut if cut.isprintable() else ascii(cut)[1:-1]
