"""Rules about elections by priority (ADR 63), and about freezes and permissions to leave (ADR 64)."""

from __future__ import annotations

from collections.abc import Iterator

from rota.core.group import records as r
from rota.core.types.leader import PROTOCOL_TYPE, decode_candidate, successor_of
from rota.protocol import messages as m
from rota.protocol.causes import Cause
from rota.protocol.errors import ErrorCode
from tests.simulation.beside_checks import STEP_DOWN
from tests.simulation.history import Landed
from tests.simulation.ledger import GroupAccount
from tests.simulation.scan import Scan

_VOLUNTARY = (Cause.MEMBER_JOINED, Cause.TOPICS_CHANGED, Cause.REQUESTED, Cause.STEP_DOWN)
_GOES_ON = (
    r.MemberLeft,
    r.MemberExpired,
    r.MemberRemoved,
    r.RebalanceStarted,
    r.GroupEmptied,
    r.UnitsSuspected,
    r.UnitsQuarantined,
)
"""What may follow a departure from a Stable group, beside shares that go to standbys."""


def check_succession(scan: Scan, account: GroupAccount, line: Landed) -> Iterator[str]:
    """S22: a leader whose work may be under way leads on. Else the candidate that it was asked to hand over to leads,
    or one of the highest priority. Only dynamic members are known to have joined.

    A leader that says it has no work may lead on, too: the journal does not show whether it knew that it leads.
    """
    record = line.entry.record
    if not isinstance(record, r.GenerationCompleted) or record.protocol_type != PROTOCOL_TYPE:
        return
    said = {
        member_id: decode_candidate(image.metadata_for(record.protocol_name))
        for member_id, image in account.members.items()
    }
    here = {member_id for member_id, image in account.members.items() if image.group_instance_id is None}
    former, chosen = account.leads(), record.leader_id
    is_stepped_down = (line.entry.namespace, line.entry.group_id) in scan.stepped_down
    if former in here and chosen != former and said[former].holding is not False:
        yield f"S22 {line.entry.group_id}: {chosen} leads, and {former} may still be at work"
    if chosen == former:
        return
    asked = successor_of(account.assignments.get(former, b"")) if former in said else ""
    if asked in here and former in here and chosen != asked and not is_stepped_down:
        yield f"S22 {line.entry.group_id}: {chosen} leads, and {former} handed over to {asked}"
    best = max((said[each].priority for each in here - {former}), default=said[chosen].priority)
    if chosen != asked and said[chosen].priority < best:
        yield f"S22 {line.entry.group_id}: {chosen} leads with {said[chosen]}, the highest priority is {best}"


def check_hysteresis(_scan: Scan, account: GroupAccount, line: Landed) -> Iterator[str]:
    """S23: a leader is asked to hand over by a candidate that has outranked it for that candidate's time, no earlier.

    The time counts from the last of: the candidate's first generation, a change of either priority, the election.
    """
    record = line.entry.record
    if not isinstance(record, r.AssignmentSynced) or not record.resync or account.protocol_type != PROTOCOL_TYPE:
        return
    if STEP_DOWN in record.reason:
        return
    leader_id = record.leader_id
    successor_id = successor_of(dict(record.assignments)[leader_id])
    if successor_id not in account.members:
        yield f"S23 {line.entry.group_id}: {leader_id} is asked to hand over to {successor_id!r}, which is no member"
        return
    successor, leader = (
        decode_candidate(account.members[each].metadata_for(account.protocol_name))
        for each in (successor_id, leader_id)
    )
    ranks = account.ranks
    since_ms = max(ranks[successor_id].since_ms, ranks[leader_id].since_ms, account.leads_since_ms)
    if successor.priority <= leader.priority or leader.holding is None:
        yield f"S23 {line.entry.group_id}: {leader_id} with {leader} is preempted by {successor_id} with {successor}"
    if successor.preempt_after_ms is None or line.decided_ms - since_ms < successor.preempt_after_ms:
        after_ms = line.decided_ms - since_ms
        yield f"S23 {line.entry.group_id}: {successor_id} with {successor} preempts {leader_id} after {after_ms} ms"


def check_freeze(_scan: Scan, account: GroupAccount, line: Landed) -> Iterator[str]:
    """S24: in a frozen Stable group no newcomer is admitted, and no rebalance begins that could begin later. But a
    departure is never held back.
    """
    record, group_id = line.entry.record, line.entry.group_id
    is_stable = account.state == "Stable"
    to_standbys = isinstance(record, r.AssignmentSynced) and record.cause != Cause.RESYNC
    goes_on = to_standbys or isinstance(record, _GOES_ON)
    if is_stable and account.settled_state == "PreparingRebalance" and not goes_on:
        yield f"S24 {group_id}: a departure is held back: {record}"
    if not account.is_frozen(line.entry.at_ms):
        return
    match record:
        case r.MemberJoined() if is_stable:
            yield f"S24 {group_id}: frozen until {account.frozen_until_ms}, and {record} was admitted"
        case r.RebalanceStarted(from_state="Stable", cause=cause) if cause in _VOLUNTARY:
            yield f"S24 {group_id}: frozen until {account.frozen_until_ms}, and a rebalance began: {record.reason}"
        case r.AssignmentSynced(resync=True, cause=Cause.RESYNC):
            yield f"S24 {group_id}: frozen until {account.frozen_until_ms}, and shares changed: {record.reason}"


def check_permission(_scan: Scan, account: GroupAccount, line: Landed) -> Iterator[str]:
    """S25: a member of a Stable group that is not frozen may leave, as one of at most so many."""
    record = line.entry.record
    if not isinstance(record, r.LeaveGranted):
        return
    at_ms, group_id = line.entry.at_ms, line.entry.group_id
    others = [each for each, until_ms in account.leaving.items() if until_ms > at_ms and each != record.member_id]
    if account.state != "Stable" or account.is_frozen(at_ms) or record.member_id not in account.members:
        yield f"S25 {group_id}: {record} in {account.state}, frozen until {account.frozen_until_ms}"
    if len(others) >= record.max_leaving:
        yield f"S25 {group_id}: {record}, and {others} are leaving"


def check_refused_newcomer(account: GroupAccount, request: m.JoinGroup, reply: m.JoinReply) -> Iterator[str]:
    """S24: a freeze refuses the newcomers of a Stable group, and no other join."""
    if reply.error is not ErrorCode.THROTTLED:
        return
    is_known = request.member_id in account.members or request.group_instance_id in account.static_members()
    if is_known or account.state != "Stable" or account.frozen_until_ms is None:
        yield f"S24 refused in {account.state}, frozen until {account.frozen_until_ms}, a member: {is_known}"
