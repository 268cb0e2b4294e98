"""A warning about topics that a consumer names and that are not registered, and its end."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from rota.protocol.defaults import WARN_AGAIN_MS

REPEAT_S = WARN_AGAIN_MS / 1000
_SHOWN = 10
"""Maximum number of names in a message."""

_log = logging.getLogger(__name__)


class MissingTopics:
    """The missing topics as one text. Logs a warning when they change, and once a minute while they are missing."""

    def __init__(self, group_id: str) -> None:
        self.text = ""
        """Empty if no topic is missing."""
        self._group_id = group_id
        self._names: tuple[str, ...] = ()
        self._warned_at_s = float("-inf")

    def update(self, wanted: Sequence[str], registered: Collection[str], now_s: float) -> None:
        """Compare the topics that this member names with the registered ones."""
        former, self._names = self._names, tuple(sorted(set(wanted) - set(registered)))
        self.text = _described(self._names, registered) if self._names else ""
        if former and not self._names:
            _log.info("group %s: %s", self._group_id, _are(former, "registered now"))
        elif self._names and (self._names != former or now_s >= self._warned_at_s + REPEAT_S):
            self._warned_at_s = now_s
            _log.warning("group %s: %s", self._group_id, self.text)


def _described(names: Sequence[str], registered: Collection[str]) -> str:
    it, they = ("it", "it is") if len(names) == 1 else ("them", "they are")
    known = _listed(sorted(registered)) if registered else "none"
    return f"{_are(names, 'not registered')}: this member gets nothing of {it} until {they}; registered are: {known}"


def _are(names: Sequence[str], state: str) -> str:
    quoted = _listed([repr(name) for name in names])
    return f"topic {quoted} is {state}" if len(names) == 1 else f"topics {quoted} are {state}"


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
