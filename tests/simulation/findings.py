"""The bugs that two reviews planted in this product, and the names under which each is planted here.

The ids are those of the reviews: F and A are of the group, R of the runtime, D1 and D2 of the commit order, leases,
hand-over, forwarding and sessions.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One bug, and the names of the planted bugs that stand for it."""

    text: str
    planted_as: tuple[str, ...]


def _as(text: str, *planted: str) -> Finding:
    return Finding(text, planted)


FINDINGS: dict[str, Finding] = {
    "faults F5": _as("a full group waits for the whole rebalance timeout", "full_group_waits_for_a_removed_member"),
    "faults F7": _as("a member outside of the generation commits", "newcomer_commits"),
    "faults A1": _as(
        "a departure while the assignment is awaited is not settled",
        "departure_while_the_assignment_is_awaited_is_not_settled",
    ),
    "faults A2": _as("a returning static leader's assignments count", "skipped_assignment_counts"),
    "faults A3": _as("a retried resync opens another generation", "repeated_resync_opens_a_generation"),
    "faults A4": _as("a commit does not renew the session", "commit_does_not_renew_the_session"),
    "faults A5": _as("a void pending id does not end the join phase", "void_pending_id_does_not_end_the_join_phase"),
    "faults A6": _as("there is room for one member too many", "room_for_one_member_too_many"),
    "faults A7": _as("a leave in the join phase does not end it", "leave_does_not_end_the_join_phase"),
    "faults A8": _as("heartbeats of older generations are accepted", "heartbeat_of_an_older_generation_is_accepted"),
    "faults A9": _as("static members go at the rebalance timeout", "static_members_go_at_the_rebalance_timeout"),
    "faults A10": _as("sessions end 200 ms early", "sessions_end_early"),
    "faults A11": _as("commits are taken while the assignment is awaited", "commit_while_the_assignment_is_awaited"),
    "faults A12": _as(
        "offsets of an Empty group expire by their own age", "offsets_of_an_empty_group_expire_by_their_own_age"
    ),
    "faults R1": _as(
        "a reply without entries leaves before the state that it shows is durable", "answered_from_memory"
    ),
    "faults R2": _as(
        "a read is answered at once from memory that is not durable",
        "answered_from_memory",
        "a_heartbeat_is_answered_from_memory",
    ),
    "faults R3": _as("a renewed lease counts from the answer", "lease_counts_from_the_answer"),
    "faults R4": _as("a lease that had run out is kept", "a_lease_that_ran_out_is_renewed"),
    "faults R5": _as("an unknown outcome keeps the shard", "unknown_outcome_is_failure"),
    "faults R6": _as("answers leave after the lease is over", "replies_after_the_lease"),
    "faults R7": _as(
        "decided and undecided calls get the same answer at a hand-over", "decided_calls_are_sent_elsewhere"
    ),
    "faults R8": _as("a claimed lease counts from the answer", "claimed_lease_counts_from_the_answer"),
    "faults R9": _as(
        "the other replicas are not asked before a member expires", "the_others_are_not_asked_before_an_expiry"
    ),
    "aesthetics D1": _as(
        "both together: answers before they are durable, and a lease that never ends",
        "reply_before_commit",
        "lease_is_not_watched",
    ),
    "aesthetics D2 later": _as("replies of a later transaction leave with the first", "later_replies_released"),
    "aesthetics D2 memory": _as("a request is answered from memory that is not durable", "answered_from_memory"),
    "aesthetics D2 claim": _as("a lease counts from the claim's answer", "claimed_lease_counts_from_the_answer"),
    "aesthetics D2 unknown": _as(
        "of several shards in an append of unknown outcome only the first is given up", "only_one_shard_is_given_up"
    ),
    "aesthetics D2 resent": _as(
        "a call of unknown outcome is sent to the next owner", "a_call_of_unknown_outcome_is_sent_again"
    ),
    "aesthetics D2 late": _as("replies leave after the lease is over", "replies_after_the_lease"),
    "aesthetics D2 flush": _as(
        "a hand-over does not flush first", "a_hand_over_does_not_flush", "handed_over_before_it_is_durable"
    ),
    "aesthetics D2 at once": _as("every reply leaves at once", "reply_before_commit"),
    "aesthetics D2 watch": _as("the lease is never watched", "lease_is_not_watched"),
    "aesthetics D2 renewal": _as(
        "a renewal counts from the answer, and nothing is given up",
        "a_renewal_counts_from_the_answer_and_never_gives_up",
    ),
    "aesthetics D2 stale": _as("a stale renewal reinstalls a dropped shard", "stale_renewal_reinstalls"),
    "aesthetics D2 asked": _as(
        "the other replicas are not asked before a member expires", "the_others_are_not_asked_before_an_expiry"
    ),
    "aesthetics D2 sessions": _as(
        "a new owner ignores the rest of sessions", "a_new_owner_ignores_what_was_left_of_sessions"
    ),
}


def findings_of(name: str) -> list[str]:
    """The ids of the findings that this planted bug stands for."""
    return [identity for identity, finding in FINDINGS.items() if name in finding.planted_as]
