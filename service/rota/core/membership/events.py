"""The states of a member, its next call, and what the machine reports to its driver."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rota.protocol.errors import ErrorCode
from rota.protocol.fencing_token import NO_TOKEN
from rota.protocol.messages import Heartbeat, JoinedMember, JoinGroup, LeaveGroup, SyncGroup

# --- states ---------------------------------------------------------------------------------------


class State(StrEnum):
    """The state of a member. The last three are final."""

    UNJOINED = "unjoined"
    JOINING = "joining"
    LEADING = "leading"
    SYNCING = "syncing"
    STABLE = "stable"
    REVOKING = "revoking"
    LEAVING = "leaving"
    AWAY = "away"
    LEFT = "left"
    FENCED = "fenced"
    FAILED = "failed"


FINAL = frozenset({State.LEFT, State.FENCED, State.FAILED})
JOINS = frozenset({State.UNJOINED, State.JOINING})
IN_GENERATION = frozenset({State.LEADING, State.SYNCING, State.STABLE, State.REVOKING})

UNAVAILABLE = frozenset(
    {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}
)
LATER = UNAVAILABLE | {ErrorCode.THROTTLED, ErrorCode.GROUP_MAX_SIZE_REACHED}
REFUSALS = frozenset({ErrorCode.UNAUTHENTICATED, ErrorCode.GROUP_AUTHORIZATION_FAILED})
"""An operator cures these: a token that is replaced, a permission that is granted."""
UNKNOWN = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND})
STRAY_FOR_JOIN = UNKNOWN | {
    ErrorCode.MEMBER_ID_REQUIRED,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.ASSIGNMENT_FAILED,
}
"""Codes that end a generation but make no sense as the answer to a join: repeat it after a pause."""


# --- events ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JoinedAsLeader:
    """This member leads `generation_id`: answer with `Membership.assign` or `Membership.assignment_failed`."""

    generation_id: int
    protocol_name: str
    members: tuple[JoinedMember, ...]


@dataclass(frozen=True, slots=True)
class Assigned:
    """This member holds `assignment` until its deadline. It replaces whatever was held before (resync)."""

    generation_id: int
    protocol_name: str
    leader_id: str
    is_leader: bool
    assignment: bytes
    fencing_token: int = NO_TOKEN


@dataclass(frozen=True, slots=True)
class RebalanceStarted:
    """The group moves on: stop work, commit, then call `Membership.rejoin`. Still held until then.

    `generation_id` may still commit while the join phase lasts; heartbeats go on meanwhile.
    """

    generation_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
    """Another member may have the share already: stop at once, without a commit.

    `reason` is "deadline" where the local deadline passed without an acknowledged renewal,
    otherwise the coordinator's answer, which is then in `code`.
    """

    generation_id: int
    reason: str
    code: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class AssignmentFailed:
    """The leader could not assign this generation; all members join again after a pause."""

    generation_id: int
    detail: str


@dataclass(frozen=True, slots=True)
class Unreachable:
    """No coordinator has answered for a second. A share that is held stays held until the deadline.

    `cause` says why the last call failed: "cannot connect to …", or the coordinator's own error.
    """

    since_ms: int
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The coordinator answers, but has rejected this member's calls for a second: the group is full, or it throttles.

    The member retries; `cause` has the coordinator's words.
    """

    since_ms: int
    code: ErrorCode
    cause: str


@dataclass(frozen=True, slots=True)
class Reachable:
    """The coordinator serves this member's calls again."""


@dataclass(frozen=True, slots=True)
class Left:
    """Final: this member has left, or tried to as often as is reasonable."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Final: the coordinator refuses this member for a reason that a retry does not remove."""

    code: ErrorCode
    detail: str


Event = (
    JoinedAsLeader
    | Assigned
    | RebalanceStarted
    | Lost
    | AssignmentFailed
    | Unreachable
    | Rejected
    | Reachable
    | Left
    | Failed
)


# --- requests -------------------------------------------------------------------------------------


MembershipRequest = JoinGroup | SyncGroup | Heartbeat | LeaveGroup


@dataclass(frozen=True, slots=True)
class Planned:
    """The next call, not before `send_at_ms`; without an answer after `timeout_ms` it has failed."""

    request: MembershipRequest
    send_at_ms: int
    timeout_ms: int
