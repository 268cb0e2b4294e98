"""The quarantine of one group, as the journal has it: counted a second time, by the ends of the holders (ADR 81)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rota.core.group import records as r
from rota.core.types import units_of
from rota.protocol.causes import Cause


class QuarantineAccount:
    """Follows a group's records, and says which of them a quarantine should not have brought.

    Falls are counted without the exceptions for outages, so a unit has at least as many as the coordinator counts.
    """

    def __init__(self) -> None:
        self.left_out: set[str] = set()
        self._kind = ""
        self._rule = (0, 1)
        self._shares: dict[str, frozenset[str]] = {}
        self._falls: Counter[str] = Counter()

    def note(self, record: r.Record) -> Iterator[str]:
        """Move on by a record. Each text is a violation."""
        match record:
            case r.GenerationCompleted():
                self._kind = record.protocol_type
            case r.AssignmentSynced():
                yield from self._assigned(record)
            case r.MemberExpired() | r.MemberLeft(cause=Cause.UNIT_FAILED):
                self._falls.update(self._shares.pop(record.member_id, ()))
            case r.MemberLeft():
                self._acquit(self._shares.pop(record.member_id, frozenset()))
            case r.MemberRemoved():
                self._shares.pop(record.member_id, None)
            case r.MemberFenced() if record.member_id in self._shares:
                self._shares[record.new_member_id] = self._shares.pop(record.member_id)
            case r.QuarantineChanged():
                self._rule = (record.after_falls, record.max_units)
            case r.UnitsQuarantined():
                yield from self._quarantined(record)
            case r.UnitsReleased():
                self.left_out -= set(record.units)

    def _assigned(self, record: r.AssignmentSynced) -> Iterator[str]:
        given = {member_id: units_of(self._kind, share) for member_id, share in record.assignments}
        if wrong := self.left_out & frozenset().union(*given.values()):
            yield f"{sorted(wrong)} are quarantined, and assigned in generation {record.generation_id}"
        for member_id, units in self._shares.items():
            self._acquit(units - given.get(member_id, frozenset()))
        self._shares = given

    def _quarantined(self, record: r.UnitsQuarantined) -> Iterator[str]:
        after_falls, max_units = self._rule
        if innocent := [unit for unit in record.units if not 0 < after_falls <= self._falls[unit]]:
            yield f"{innocent} are quarantined after {dict(self._falls)} falls, of {after_falls}"
        self.left_out |= set(record.units)
        if len(self.left_out) > max_units:
            yield f"{sorted(self.left_out)} are quarantined, and at most {max_units} may be"
        self._acquit(frozenset(record.units))

    def _acquit(self, units: frozenset[str]) -> None:
        for unit in units:
            self._falls.pop(unit, None)
