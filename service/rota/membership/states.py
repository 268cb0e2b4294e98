"""Where a member stands, and which error codes mean the same to it."""

from __future__ import annotations

from enum import StrEnum

from rota.protocol.errors import ErrorCode


class State(StrEnum):
    """Where a member stands. The last three are final."""

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
