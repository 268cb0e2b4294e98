"""What the runtime is to assign for a group, and taking in what it came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rota.group.assigning import generation_of, record_assignment, server_side_of
from rota.group.rebalance import release_heartbeats, start_rebalance
from rota.group.records import AssignmentFailed
from rota.group.result import Result
from rota.group.state import COMPLETING_REBALANCE, STABLE, Group
from rota.group.sync import answer_syncs
from rota.protocol.errors import ErrorCode
from rota.protocol.limits import Limits
from rota.protocol.messages import SyncReply
from rota.types import Generation, ServerSide


@dataclass(frozen=True, slots=True)
class AssignmentJob:
    """A generation that waits for the server's assignment, or whose topics may have changed since it had one."""

    namespace: str
    group_id: str
    side: ServerSide
    generation: Generation


def assignment_job(group: Group | None) -> AssignmentJob | None:
    """None if there is nothing for the runtime to assign (any more)."""
    if group is None or group.state not in (COMPLETING_REBALANCE, STABLE):
        return None
    side = server_side_of(group)
    if side is None or (group.state is STABLE and side.wants_topic is None):
        return None
    return AssignmentJob(group.namespace, group.group_id, side, generation_of(group))


def is_current(group: Group | None, job: AssignmentJob) -> bool:
    """Whether the group is still as the job found it. A static member may be back under a new id since, in the same
    generation: what was computed would leave it with nothing.
    """
    return (
        group is not None
        and group.generation_id == job.generation.generation_id
        and list(group.members) == [member.member_id for member in job.generation.members]
    )


def finish_job(
    result: Result, group: Group | None, job: AssignmentJob, outcome: Mapping[str, bytes] | str, limits: Limits
) -> None:
    """Take in the assignments, or why there are none. They count only for the group that they were computed for.

    A Stable group whose topics have changed is resynced: the generation goes up, and members fetch their new shares.
    Where a member would lose a partition it rebalances instead, because another one that is given it would begin before
    that member had stopped. Where no assignment could be computed, members keep theirs.
    """
    if group is None or not is_current(group, job):
        return
    match group.state, outcome:
        case state, str() if state is COMPLETING_REBALANCE:
            _fail(result, group, outcome, limits)
        case state, Mapping() if state is COMPLETING_REBALANCE:
            record_assignment(result, group, outcome, resync=False)
            answer_syncs(result, group)
        case state, Mapping() if state is STABLE and job.side.takes_away(_shares(group), outcome):
            start_rebalance(result, group, limits, "the topics changed", "")
        case state, Mapping() if state is STABLE and _differs(group, outcome):
            record_assignment(result, group, outcome, resync=True)
            release_heartbeats(result, group)


def _shares(group: Group) -> dict[str, bytes]:
    return {member_id: member.assignment for member_id, member in group.members.items()}


def _differs(group: Group, assignments: Mapping[str, bytes]) -> bool:
    return any(assignments.get(member_id, b"") != member.assignment for member_id, member in group.members.items())


def _fail(result: Result, group: Group, error: str, limits: Limits) -> None:
    """As if the leader had sent an error: who waits is told, and all join again."""
    result.record(group, AssignmentFailed(group.generation_id, group.leader_id or "", error))
    reply = SyncReply(ErrorCode.ASSIGNMENT_FAILED, detail=error)
    start_rebalance(result, group, limits, f"the server could not assign: {error}", "", parked_syncs=reply)
