"""Causes of a member's rebalances as labels of metrics: reasons are free text, with unbounded values."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rota.core.membership import events as core
from rota.protocol.errors import ErrorCode

CAUSES: Mapping[str, str] = {
    "group": "The coordinator started it: another member joined, left or expired, or an operator requested it.",
    "resync": "The group's leader changed the assignment without a join phase.",
    "assignment_failed": "The leader could not assign the generation, and all members join again.",
    "second_round": "This cooperative member has revoked the partitions that move, and joins again without them.",
    "subscription_changed": "This member, or one that this leader found restarted, subscribes to other topics.",
    "topics_changed": "This leader found other topics or partition counts.",
    "partitions_unassigned": "This leader found partitions that are assigned to no member.",
    "assignment_unreadable": "This leader could not read the group's assignment.",
    "work_changed": "This leader of Connect workers found other connectors or tasks.",
    "return_delay_over": "This leader of Connect workers assigns the work of a worker that did not return in time.",
    "metadata_changed": "This member's metadata changed while a join was under way.",
    "requested": "The program called `rejoin`.",
    "stepped_aside": "This member left in order, to join again later.",
    "no_progress": "This member released its share: no progress for `max_processing_interval`.",
    "lost_deadline": "The share was lost: the local deadline passed without a renewal.",
    "lost_unknown_member": "The share was lost: the coordinator does not know this member, or its group.",
    "lost_illegal_generation": "The share was lost: the group is in another generation.",
    "lost_fenced": "The share was lost: another member took over this `group_instance_id`.",
    "lost_topic": "The share was lost: a topic in it was deleted, and this member still committed progress in it.",
    "lost_rejected": "The share was lost: the coordinator rejected this member for another reason.",
}

_REASONS = tuple(
    (cause, re.compile(pattern))
    for cause, pattern in (
        ("group", "rebalance$"),
        ("assignment_failed", "assignment failed$"),
        ("second_round", "(gave up what was revoked|does not run what it should stop)$"),
        ("subscription_changed", "(its subscription changed|a member restarted with another subscription)$"),
        ("topics_changed", "the topics changed(: .*)?$"),
        ("partitions_unassigned", r"\S+ partitions wait for a member$"),
        ("assignment_unreadable", "its assignment cannot be read: "),
        ("work_changed", "other work is configured$"),
        ("return_delay_over", "an absent worker did not come back in time$"),
        ("metadata_changed", "its metadata changed$"),
    )
)
"""The reasons that this package gives. All other reasons are those of the program's `rejoin`."""

_LOSSES = {
    ErrorCode.NONE: "lost_deadline",
    ErrorCode.UNKNOWN_MEMBER_ID: "lost_unknown_member",
    ErrorCode.GROUP_ID_NOT_FOUND: "lost_unknown_member",
    ErrorCode.ILLEGAL_GENERATION: "lost_illegal_generation",
    ErrorCode.FENCED_INSTANCE_ID: "lost_fenced",
    ErrorCode.UNKNOWN_TOPIC: "lost_topic",
}


def cause_of_reason(reason: str) -> str:
    """Return the label for the reason of a `RebalanceStarted`."""
    return next((cause for cause, pattern in _REASONS if pattern.match(reason)), "requested")


class RebalanceCauses:
    """Derives the cause of each rebalance from one member's events, once for each rebalance."""

    def __init__(self) -> None:
        self._is_settled = False
        """Whether the last relevant event was an assignment: a further one is then a resync."""

    def cause_of(self, event: core.Event) -> str | None:
        """Return the cause of the rebalance that starts with `event`; None if no rebalance starts."""
        match event:
            case core.Assigned():
                was_settled, self._is_settled = self._is_settled, True
                return "resync" if was_settled else None
            case core.Lost():
                return self.begin(_LOSSES.get(event.code, "lost_rejected"))
            case core.AssignmentFailed():
                return self.begin("assignment_failed")
            case core.RebalanceStarted():
                cause = self.begin(cause_of_reason(event.reason))
                # `AssignmentFailed` was published just before.
                return None if cause == "assignment_failed" else cause
        return None

    def begin(self, cause: str) -> str:
        """Record that a rebalance starts for this cause."""
        self._is_settled = False
        return cause
