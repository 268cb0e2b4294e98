"""A rule for frozen groups: no rebalance of a Stable group begins for newcomers or changes of topics meanwhile."""

from __future__ import annotations

from rota.core.group.records import AssignmentSynced, Entry, GroupFrozen, GroupUnfrozen, RebalanceStarted
from rota.protocol.causes import Cause
from tests.simulation.groups.books import Books

_VOLUNTARY = (Cause.MEMBER_JOINED, Cause.TOPICS_CHANGED, Cause.REQUESTED, Cause.STEP_DOWN)


class FreezeRule:
    """Follows what the coordinator records."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._until_ms: dict[str, int] = {}

    def note(self, entry: Entry) -> None:
        match entry.record:
            case GroupFrozen(until_ms=until_ms):
                self._until_ms[entry.group_id] = until_ms
            case GroupUnfrozen():
                self._until_ms.pop(entry.group_id, None)
            case RebalanceStarted(from_state="Stable", cause=cause) if cause in _VOLUNTARY:
                self._check(entry, f"a rebalance began: {entry.record.reason}")
            case AssignmentSynced(resync=True, cause=Cause.RESYNC):  # A departure is no wish.
                self._check(entry, f"a new assignment was taken: {entry.record.reason}")

    def _check(self, entry: Entry, what: str) -> None:
        if entry.at_ms < self._until_ms.get(entry.group_id, 0):
            self._books.violation("frozen", f"{entry.group_id} is frozen, and {what}")
