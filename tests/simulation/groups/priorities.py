"""A rule for elections by priority: no leader is asked to hand over before a candidate has outranked it long enough."""

from __future__ import annotations

from rota.core.group.records import AssignmentSynced, Entry, GenerationCompleted, MemberFenced
from rota.core.types.leader import PROTOCOL_TYPE, decode_candidate, decode_election
from tests.simulation.groups.books import Books
from tests.simulation.groups.coordinator import GroupCoordinator

_STEPS_DOWN = "was asked to step down"


class PreemptionRule:
    """Follows what the coordinator records, with a clock of its own."""

    def __init__(self, coordinator: GroupCoordinator, books: Books) -> None:
        self._coordinator = coordinator
        self._books = books
        self._since: dict[tuple[str, str], int] = {}
        """By group and member id: when it was in a generation first."""
        self._leads: dict[str, tuple[str, int]] = {}

    def note(self, entry: Entry) -> None:
        match entry.record:
            case GenerationCompleted(protocol_type=kind) as record if kind == PROTOCOL_TYPE:
                for member_id in record.member_ids:
                    self._since.setdefault((entry.group_id, member_id), entry.at_ms)
                if self._leads.get(entry.group_id, ("", 0))[0] != record.leader_id:
                    self._leads[entry.group_id] = (record.leader_id, entry.at_ms)
            case MemberFenced() as record:
                # In a Stable group the successor of a static member is in the generation at once.
                self._since.setdefault((entry.group_id, record.new_member_id), entry.at_ms)
                if self._leads.get(entry.group_id, ("", 0))[0] == record.member_id:
                    self._leads[entry.group_id] = (record.new_member_id, entry.at_ms)
            case AssignmentSynced(resync=True) as record if _STEPS_DOWN not in record.reason:
                self._check(entry, record)

    def _check(self, entry: Entry, record: AssignmentSynced) -> None:
        group = self._coordinator.group(entry.group_id)
        if group is None or group.protocol_type != PROTOCOL_TYPE:
            return
        leader_id = record.leader_id
        successor_id = decode_election(dict(record.assignments)[leader_id]).successor_id
        said, leaders = (
            decode_candidate(group.members[each].image.metadata_for(group.protocol_name or ""))
            for each in (successor_id, leader_id)
        )
        since_ms = max(self._since.get((entry.group_id, successor_id), entry.at_ms), self._leads[entry.group_id][1])
        if said.priority <= leaders.priority:
            self._books.violation("preempted", f"{leader_id} is to hand over to {successor_id}, which is no better")
        if said.preempt_after_ms is None or entry.at_ms - since_ms < said.preempt_after_ms:
            text = f"{leader_id} is to hand over to {successor_id} after {entry.at_ms - since_ms} ms, {said} was agreed"
            self._books.violation("preempted", text)
