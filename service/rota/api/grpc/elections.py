"""Elections that take members along, as lines of the journal show them (ADR 95)."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rota.protocol.fencing_token import fencing_token
from rota.replica.ports import JournalEvent
from rota.types import server_side
from rota.v1.coordinator_pb2 import Election, MemberAssignment


@dataclass(frozen=True, slots=True)
class Elected:
    """A generation that began, and has its shares, in the transaction that ended the one before."""

    completed: JournalEvent
    """The line that completes it."""
    synced: JournalEvent
    """The line with its shares."""
    member_ids: frozenset[str]

    def news_for(self, member_ids: Iterable[str], place: Mapping[str, Any]) -> Election:
        """What these members' joins would be answered with. `place`: the group, and the line that this reports."""
        completed, shares = self.completed.payload, dict(self.synced.payload["assignments"])
        members = [
            MemberAssignment(member_id=member_id, assignment=b64decode(shares.get(member_id, "")))
            for member_id in member_ids
        ]
        return Election(
            **place,
            generation_id=completed["generation_id"],
            members=members,
            leader_id=completed["leader_id"],
            protocol_type=completed["protocol_type"],
            protocol_name=completed["protocol_name"],
            fencing_token=fencing_token(completed["generation_id"]),
            reason=self.completed.reason,
            by=completed["by"],
        )


def elected_in(lines: Sequence[JournalEvent]) -> Elected | None:
    """The generation that follows on the rebalance that `lines[0]` begins; None where there is none in this
    transaction, or where members that do not lead may hold something of the generation before.

    Its members have joined or count as joined, and hold nothing. So each of them may enter it by these lines alone.
    """
    completed: JournalEvent | None = None
    for line in lines[1:]:
        match line.kind:
            case "rebalance_started":
                return None
            case "generation_completed":
                completed = line
            case "assignment_synced" if completed is not None and not line.payload["resync"]:
                member_ids = frozenset(completed.payload["member_ids"])
                return Elected(completed, line, member_ids) if _is_election(completed) else None
    return None


def _is_election(completed: JournalEvent) -> bool:
    side = server_side(completed.payload["protocol_type"], completed.payload["protocol_name"])
    return side is not None and side.succession is not None and side.succession.followers_hold_nothing
