"""Codes for the causes of rebalances, departures and empty groups: the coordinator writes them into the journal.

The sentence beside a code is for people and may name members; programs read the code. A reader must expect codes of
later releases.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Cause(StrEnum):
    """One code for each thing that makes a group rebalance. A code is never renamed: dashboards and lakes hold it."""

    MEMBER_JOINED = "member_joined"
    MEMBER_LEFT = "member_left"
    MEMBER_EXPIRED = "member_expired"
    SYNC_TIMEOUT = "sync_timeout"
    MEMBER_REMOVED = "member_removed"
    GROUP_FULL = "group_full"
    METADATA_CHANGED = "metadata_changed"
    STATIC_MEMBER_RETURNED = "static_member_returned"
    LEADER_REJOINED = "leader_rejoined"
    LEADER_HANDED_OVER = "leader_handed_over"
    TOPICS_CHANGED = "topics_changed"
    RETURN_DELAY_OVER = "return_delay_over"
    ASSIGNMENT_FAILED = "assignment_failed"
    ASSIGNMENT_OUTDATED = "assignment_outdated"
    RESYNC = "resync"
    REQUESTED = "requested"
    STEP_DOWN = "step_down"
    UNIT_FAILED = "unit_failed"
    UNITS_RELEASED = "units_released"
    GENERATION_RAISED = "generation_raised"
    OTHER = "other"


CAUSES: Mapping[Cause, str] = {
    Cause.MEMBER_JOINED: "a new member joined",
    Cause.MEMBER_LEFT: "a member left",
    Cause.MEMBER_EXPIRED: "a member expired: no heartbeat within its session timeout, or no join within the rebalance "
    "timeout",
    Cause.SYNC_TIMEOUT: "a member did not fetch its share within the rebalance timeout",
    Cause.MEMBER_REMOVED: "an administrator removed a member",
    Cause.GROUP_FULL: "a member joined too late, and other members had taken all places",
    Cause.METADATA_CHANGED: "a member changed its metadata, its subscription for example",
    Cause.STATIC_MEMBER_RETURNED: "a static member returned with other metadata, or while the assignment was awaited",
    Cause.LEADER_REJOINED: "the leader joined again to assign anew",
    Cause.LEADER_HANDED_OVER: "the leader was asked to hand over, to a candidate of a higher priority for example",
    Cause.TOPICS_CHANGED: "topics or their partition counts changed",
    Cause.RETURN_DELAY_OVER: "the work of a departed worker has waited for its return for as long as it may",
    Cause.ASSIGNMENT_FAILED: "the leader or the server could not assign",
    Cause.ASSIGNMENT_OUTDATED: "the leader assigned to a member id that had been replaced",
    Cause.RESYNC: "the leader or the server changed the assignment; no join phase was needed",
    Cause.REQUESTED: "an administrator requested a rebalance",
    Cause.STEP_DOWN: "an administrator requested another leader",
    Cause.UNIT_FAILED: "a member left, because its work on a unit failed",
    Cause.UNITS_RELEASED: "units were released from quarantine, by an administrator or because their time was over",
    Cause.GENERATION_RAISED: "the store went back to an earlier state, and the generation was raised past it",
    Cause.OTHER: "the line has no code",
}

MEMBER_ENDS = {
    "member_left": "left",
    "member_expired": "expired",
    "member_removed": "removed",
    "member_fenced": "replaced",
}
"""How a member ended, by the kind of the journal's line that says so."""
