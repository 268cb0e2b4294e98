"""Why a rebalance began, as one word that can be counted."""

from __future__ import annotations

from rota.observability.causes import rebalance_cause

MEMBER_JOINED = "member joined"
MEMBER_LEFT = "member left"
SESSION_EXPIRED = "session expired"
SYNC_EXPIRED = "sync too late"
MEMBER_REMOVED = "member removed"
METADATA_CHANGED = "metadata changed"
STATIC_RETURN = "static member returned"
LEADER_REJOINED = "leader joined again"
TOPICS_CHANGED = "topics changed"
ASSIGNMENT_FAILED = "assignment failed"
ASSIGNED_TO_STRANGER = "assignment out of date"
REASSIGNED = "reassigned"
REQUESTED = "requested"
UNKNOWN = "unknown"

CAUSES = {
    MEMBER_JOINED: "a newcomer joined",
    MEMBER_LEFT: "a member left",
    SESSION_EXPIRED: "a member did not heartbeat within its session timeout",
    SYNC_EXPIRED: "a member did not fetch its share within the rebalance timeout",
    MEMBER_REMOVED: "an administrator removed a member, or the group was full",
    METADATA_CHANGED: "a member changed its metadata, its subscription for example",
    STATIC_RETURN: "a static member came back with something changed, or while the assignment was awaited",
    LEADER_REJOINED: "the leader joined again, because it wants a new assignment",
    TOPICS_CHANGED: "topics of the group were registered, deleted, or given other partitions",
    ASSIGNMENT_FAILED: "the leader or the server could not assign",
    ASSIGNED_TO_STRANGER: "the leader assigned to a member id that had been replaced",
    REASSIGNED: "the leader changed the assignment; no join phase was needed",
    REQUESTED: "an administrator asked for it, or for another leader",
    UNKNOWN: "the lines before it are not there, or were written by a later release",
}

_BY_LABEL = {
    "requested": REQUESTED,
    "step_down": REQUESTED,
    "member_expired": SESSION_EXPIRED,
    "sync_timeout": SYNC_EXPIRED,
    "static_member_returned": STATIC_RETURN,
    "assignment_failed": ASSIGNMENT_FAILED,
    "assignment_outdated": ASSIGNED_TO_STRANGER,
    "leader_rejoined": LEADER_REJOINED,
    "topics_changed": TOPICS_CHANGED,
    "metadata_changed": METADATA_CHANGED,
    "member_joined": MEMBER_JOINED,
    "member_removed": MEMBER_REMOVED,
    "member_left": MEMBER_LEFT,
}


def cause_of(reason: str) -> str:
    """By the coordinator's words for it, read as its metrics read them."""
    return _BY_LABEL.get(rebalance_cause(reason), UNKNOWN)
