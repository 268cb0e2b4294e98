"""How a rebalance ended, as one word that can be counted."""

from __future__ import annotations

ASSIGNED = "assigned"
REASSIGNED = "reassigned"
SUPERSEDED = "superseded"
TIMED_OUT = "timed_out"
ASSIGNMENT_FAILED = "assignment_failed"
EMPTIED = "emptied"
FORGOTTEN = "forgotten"
DELETED = "deleted"

OUTCOMES = {
    ASSIGNED: "all members could fetch a share",
    REASSIGNED: "the leader changed the assignment; no join phase was needed",
    SUPERSEDED: "another one began before there was an assignment, or the last member went",
    TIMED_OUT: "there was no assignment within the rebalance timeout: members that had not synced expired",
    ASSIGNMENT_FAILED: "the leader could not assign",
    EMPTIED: "the group became empty",
    FORGOTTEN: "the shard went to another owner in the join phase: members join again",
    DELETED: "the group was deleted; the lines before that are not there",
}
WASTED = (SUPERSEDED, TIMED_OUT, ASSIGNMENT_FAILED, FORGOTTEN)
"""Those that have to be done again."""
