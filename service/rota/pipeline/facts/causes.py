"""Why a rebalance began, as one word that can be counted."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rota.pipeline.facts.view import GroupView

if TYPE_CHECKING:
    from rota.pipeline.facts.fact import Event

MEMBER_JOINED = "member joined"
MEMBER_LEFT = "member left"
SESSION_EXPIRED = "session expired"
REJOIN_EXPIRED = "rejoin too late"
SYNC_EXPIRED = "sync too late"
MEMBER_REMOVED = "member removed"
METADATA_CHANGED = "metadata changed"
STATIC_RETURN = "static member returned"
LEADER_REJOINED = "leader joined again"
ASSIGNMENT_FAILED = "assignment failed"
ASSIGNED_TO_STRANGER = "assignment out of date"
REASSIGNED = "reassigned"
COORDINATOR_CHANGED = "coordinator changed"
REQUESTED = "requested"
UNKNOWN = "unknown"

CAUSES = {
    MEMBER_JOINED: "a newcomer joined",
    MEMBER_LEFT: "a member left",
    SESSION_EXPIRED: "a member did not heartbeat within its session timeout",
    REJOIN_EXPIRED: "a member did not rejoin within the rebalance timeout",
    SYNC_EXPIRED: "a member did not fetch its share within the rebalance timeout",
    MEMBER_REMOVED: "an administrator removed a member, or the group was full",
    METADATA_CHANGED: "a member changed its metadata, its subscription for example",
    STATIC_RETURN: "a static member came back with something changed, or while the assignment was awaited",
    LEADER_REJOINED: "the leader joined again: topics changed, or it wants a new assignment",
    ASSIGNMENT_FAILED: "the leader could not assign",
    ASSIGNED_TO_STRANGER: "the leader assigned to a member id that had been replaced",
    REASSIGNED: "the leader changed the assignment; no join phase was needed",
    COORDINATOR_CHANGED: "a new owner of the shard found the group in a join phase",
    REQUESTED: "an administrator asked for it, or for another leader",
    UNKNOWN: "the lines before it are not there",
}

_REQUESTED = re.compile(r"a rebalance was asked for|leader .* was asked to step down")
_BY_KIND = {
    "member_joined": MEMBER_JOINED,
    "member_left": MEMBER_LEFT,
    "member_removed": MEMBER_REMOVED,
    "member_updated": METADATA_CHANGED,
    "member_fenced": STATIC_RETURN,
    "assignment_failed": ASSIGNMENT_FAILED,
}


def cause_of(event: Event, view: GroupView) -> str:
    """What made this `rebalance_started` or `group_emptied` happen.

    The core writes the line that says what happened, then the one that says what follows from it, at one time and with
    adjacent numbers. Where nothing was written before (a leader that joins again), only the words tell.
    """
    reason = event.reason
    if _REQUESTED.match(reason):
        return REQUESTED
    if " joined again" in reason.split(";", 1)[0]:
        return LEADER_REJOINED
    if "which is no member any more" in reason:
        return ASSIGNED_TO_STRANGER
    if reason.startswith("static member ") and " came back as " in reason:
        return STATIC_RETURN
    kind, _, at_ms, member_id = view.last_line
    by = event.payload.get("by", "")
    if at_ms == event.at_ms and (not by or by == member_id or kind == "assignment_failed"):
        if kind == "member_expired":
            return expiry_of(reason)
        if kind in _BY_KIND:
            return _BY_KIND[kind]
    return _by_words(reason)


def expiry_of(reason: str) -> str:
    """In which of three ways a member was late."""
    if "did not sync" in reason:
        return SYNC_EXPIRED
    return REJOIN_EXPIRED if "did not rejoin" in reason or reason == "nobody is left" else SESSION_EXPIRED


def _by_words(reason: str) -> str:
    """By the core's words alone, in the order in which they are unlikely to be anything else."""
    head = reason.split("; client reason:", 1)[0]
    words = (
        (" joined", MEMBER_JOINED),
        (" changed its metadata", METADATA_CHANGED),
        ("did not sync", SYNC_EXPIRED),
        (" expired: ", SESSION_EXPIRED),
        (" was removed", MEMBER_REMOVED),
        (" left", MEMBER_LEFT),
        (" could not assign", ASSIGNMENT_FAILED),
    )
    return next((cause for word, cause in words if word in head), UNKNOWN)
