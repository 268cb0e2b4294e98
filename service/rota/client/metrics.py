"""The table of the SDK's metrics, and the causes of rebalances as labels."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from rota.client.errors import UnreachableKind
from rota.core.membership import events as core
from rota.protocol.errors import ErrorCode

Labels: TypeAlias = tuple[str, ...]

MOST_GROUPS = 100
"""The number of groups with their own labels; all further groups share empty labels, which bounds the series."""

_MEMBER = ("rota_namespace", "group_id", "kind")

LABELS: Mapping[str, str] = {
    "rota_namespace": "The client's namespace. Plain `namespace` is a label that Kubernetes adds.",
    "group_id": "The group. Empty for calls of no member. For all groups of a program after its first "
    f"{MOST_GROUPS}, this and the namespace are empty.",
    "kind": "`election`, `permits`, `worker_pool`, `consumer`, `connect_worker` or `member`; `client` for calls of no "
    "member.",
    "operation": "The name of the call in gRPC, also over HTTP.",
    "outcome": "`ok`; an [error code](errors.md); why no answer came: "
    f"{', '.join(f'`{kind}`' for kind in UnreachableKind)}; "
    "`cancelled`; for commits also `not_held`: the share was lost before they were sent.",
    "cause": "One of the causes below.",
}


class MetricType(StrEnum):
    """How a number changes, and how several values are combined."""

    COUNTER = "counter"
    """Only grows; several values are added."""
    SUM = "sum"
    """Rises and falls; several values are added."""
    GAUGE = "gauge"
    """Rises and falls; the largest of several values is used."""


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One metric under its Prometheus name."""

    name: str
    type: MetricType
    unit: str
    """The unit in OpenTelemetry's notation: `s`, or the thing that is counted."""
    labels: Labels
    meaning: str

    @property
    def merge(self) -> Callable[[float, float], float]:
        """Combine the values of several members with the same labels."""
        return max if self.type is MetricType.GAUGE else float.__add__

    @property
    def type_in_prometheus(self) -> str:
        """`counter` or `gauge`."""
        return MetricType.GAUGE if self.type is MetricType.SUM else self.type


def _counter(name: str, unit: str, meaning: str, *labels: str) -> Metric:
    return Metric(f"rota_client_{name}_total", MetricType.COUNTER, f"{{{unit}}}", (*_MEMBER, *labels), meaning)


def _sum(name: str, unit: str, meaning: str) -> Metric:
    return Metric(f"rota_client_{name}", MetricType.SUM, f"{{{unit}}}", _MEMBER, meaning)


def _duration(name: str, meaning: str, labels: Labels = _MEMBER) -> Metric:
    return Metric(f"rota_client_{name}_seconds", MetricType.GAUGE, "s", labels, meaning)


CALLS = _counter("calls", "call", "Calls that have ended.", "operation", "outcome")
RETRIES = _counter("retries", "retry", "Calls that repeat one that failed.", "operation")
REBALANCES = _counter("rebalances", "rebalance", "Rebalances that started for a member, including losses.", "cause")
ASSIGNED = _counter(
    "units_assigned",
    "unit",
    "Units assigned to members: partitions, work items, or 1 for a leadership and for the bytes of a `member`.",
)
REVOKED = _counter("units_revoked", "unit", "Units revoked from members in order.")
LOST = _counter("units_lost", "unit", "Units that members lost: their work was stopped without a last commit.")
COMMITS = _counter("commits", "commit", "Commits of the program that have ended.", "outcome")
MEMBERS = _sum("members", "member", "Members that are started and not closed.")
IN_TROUBLE = _sum(
    "members_in_trouble",
    "member",
    "Members whose `trouble` is not empty: their calls are not served now, or their topics are not registered.",
)
HELD = _sum(
    "units_held", "unit", "Units that members hold now, by the clock; 1 for an election that leads, or a permit."
)
SHARDS_IN_TROUBLE = _sum(
    "shards_in_trouble",
    "shard",
    "Shards of worker pools whose work made no progress for `max_processing_interval`, or raised and is retried.",
)
HEARTBEAT_AGE = _duration(
    "heartbeat_age",
    "Time since the last heartbeat was sent that the coordinator accepted; before the first, since the member was "
    "started. Grows during a join, which needs none. Absent while a member has stepped aside.",
)
COMMIT_LAG = _duration(
    "commit_lag",
    "Age of the oldest progress that was stored or passed to `commit` and is not committed yet; 0 without any.",
)
COMMIT_AGE = _duration("commit_age", "Time since the last commit that was accepted.")
LOOP_LAG = _duration("event_loop_lag", "How late the client's event loop was, measured ten times a second.", ())
LOOP_LAG_MAX = _duration("event_loop_lag_max", "The largest of these values since the client was opened.", ())

METRICS: tuple[Metric, ...] = (
    CALLS,
    RETRIES,
    REBALANCES,
    ASSIGNED,
    REVOKED,
    LOST,
    COMMITS,
    MEMBERS,
    IN_TROUBLE,
    HELD,
    SHARDS_IN_TROUBLE,
    HEARTBEAT_AGE,
    COMMIT_LAG,
    COMMIT_AGE,
    LOOP_LAG,
    LOOP_LAG_MAX,
)
"""In the order of the reference."""


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
