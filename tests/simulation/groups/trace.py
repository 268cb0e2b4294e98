"""What happened in a world, in order: kept as values, and put into words only where a rule was violated."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

VIOLATION = "VIOLATION"


class Trace:
    """Lines of (time, actor, event, detail)."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lines: list[tuple[float, str, str, object]] = []

    def note(self, actor: str, event: str, detail: object = "") -> None:
        self._lines.append((self._clock(), actor, event, detail))

    def tail(self, count: int) -> list[str]:
        """The last lines, with seconds since the start of the world."""
        first = self._lines[0][0] if self._lines else 0.0
        return [_worded(at - first, actor, event, detail) for at, actor, event, detail in self._lines[-count:]]

    def tail_of_violation(self, count: int) -> list[str]:
        """The last lines up to the first violation."""
        lines = self.tail(len(self._lines))
        last = next((number for number, line in enumerate(lines) if VIOLATION in line), len(lines))
        return lines[max(0, last - count) : last + 1]

    def digest(self) -> str:
        """The same for two runs that went the same way."""
        return hashlib.sha256(repr(self._lines).encode()).hexdigest()


def _worded(at: float, actor: str, event: str, detail: object) -> str:
    return f"{at:8.3f}  {actor:12} {event} {_shortened(str(detail))}"


def _shortened(text: str) -> str:
    return text if len(text) <= 220 else text[:217] + "..."
