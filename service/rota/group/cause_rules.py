"""Which codes a record may have, by the group's line before it: the simulator and the audit of a lake both ask."""

from __future__ import annotations

from collections.abc import Mapping

from rota.group.records import (
    AssignmentFailed,
    AssignmentSynced,
    GenerationRaised,
    GroupEmptied,
    MemberExpired,
    MemberFenced,
    MemberJoined,
    MemberLeft,
    MemberRemoved,
    MemberUpdated,
    RebalanceStarted,
    Record,
)
from rota.protocol.causes import Cause

_DEPARTURES: Mapping[type[Record], tuple[Cause, ...]] = {
    MemberLeft: (Cause.MEMBER_LEFT,),
    MemberExpired: (Cause.MEMBER_EXPIRED, Cause.SYNC_TIMEOUT),
    MemberRemoved: (Cause.MEMBER_REMOVED, Cause.GROUP_FULL),
}
_FORMER: Mapping[Cause, tuple[type[Record], ...]] = {
    Cause.MEMBER_JOINED: (MemberJoined,),
    Cause.MEMBER_LEFT: (MemberLeft,),
    Cause.MEMBER_EXPIRED: (MemberExpired,),
    Cause.SYNC_TIMEOUT: (MemberExpired,),
    Cause.MEMBER_REMOVED: (MemberRemoved,),
    Cause.METADATA_CHANGED: (MemberUpdated,),
    Cause.STATIC_MEMBER_RETURNED: (MemberFenced, MemberUpdated),
    Cause.ASSIGNMENT_FAILED: (AssignmentFailed,),
    Cause.GENERATION_RAISED: (GenerationRaised,),
}
"""What the coordinator writes just before a rebalance of this cause, where that is a line of its own."""
TELLING = (*_DEPARTURES, MemberJoined, MemberUpdated, MemberFenced, AssignmentFailed, GenerationRaised)
"""The records that can stand before one with a cause; the caller keeps the group's last one."""


def has_cause(record: Record) -> bool:
    """Whether the coordinator gives records of this kind a code, which the rules below can check."""
    if isinstance(record, AssignmentSynced):
        return record.resync
    return isinstance(record, RebalanceStarted | GroupEmptied | MemberLeft | MemberExpired | MemberRemoved)


def wrong_cause(record: Record, former: Record | None) -> str:
    """What contradicts the record's code, empty where nothing does.

    `former` is the group's last record of `TELLING` by the same owner, None where there is none: what an earlier owner
    had not settled never was.
    """
    match record:
        case MemberLeft() | MemberExpired() | MemberRemoved():
            allowed = _DEPARTURES[type(record)]
            return "" if record.cause in allowed else f"{record.kind} has the cause {record.cause!r}"
        case AssignmentSynced():
            allowed = (Cause.RESYNC, getattr(former, "cause", Cause.RESYNC))
            return "" if record.cause in allowed else f"a resync has the cause {record.cause!r}"
        case GroupEmptied() if former is not None:
            agrees = isinstance(former, MemberLeft | MemberExpired | MemberRemoved) and former.cause == record.cause
            return "" if agrees else f"the group is empty for {record.cause!r}, after {former.kind}"
        case RebalanceStarted():
            if record.cause not in tuple(Cause) or record.cause == Cause.OTHER:
                return f"a rebalance has the cause {record.cause!r}"
            expected = _FORMER.get(Cause(record.cause))
            if former is not None and expected is not None and not isinstance(former, expected):
                return f"a rebalance has the cause {record.cause!r}, after {former.kind}"
    return ""
