"""Error names of the protocol, as Kafka calls them, and the one exception that carries one."""

from __future__ import annotations

from enum import StrEnum
from typing import Any


class ErrorCode(StrEnum):
    """Every outcome a call can have. The wire carries the name (protocol.md §6)."""

    NONE = "NONE"
    UNKNOWN_MEMBER_ID = "UNKNOWN_MEMBER_ID"
    ILLEGAL_GENERATION = "ILLEGAL_GENERATION"
    REBALANCE_IN_PROGRESS = "REBALANCE_IN_PROGRESS"
    MEMBER_ID_REQUIRED = "MEMBER_ID_REQUIRED"
    FENCED_INSTANCE_ID = "FENCED_INSTANCE_ID"
    INCONSISTENT_GROUP_PROTOCOL = "INCONSISTENT_GROUP_PROTOCOL"
    INVALID_GROUP_ID = "INVALID_GROUP_ID"
    INVALID_SESSION_TIMEOUT = "INVALID_SESSION_TIMEOUT"
    GROUP_MAX_SIZE_REACHED = "GROUP_MAX_SIZE_REACHED"
    GROUP_ID_NOT_FOUND = "GROUP_ID_NOT_FOUND"
    GROUP_DELETED = "GROUP_DELETED"
    NON_EMPTY_GROUP = "NON_EMPTY_GROUP"
    GROUP_SUBSCRIBED_TO_TOPIC = "GROUP_SUBSCRIBED_TO_TOPIC"
    NOT_COORDINATOR = "NOT_COORDINATOR"
    COORDINATOR_LOAD_IN_PROGRESS = "COORDINATOR_LOAD_IN_PROGRESS"
    COORDINATOR_NOT_AVAILABLE = "COORDINATOR_NOT_AVAILABLE"
    ASSIGNMENT_FAILED = "ASSIGNMENT_FAILED"
    OFFSET_METADATA_TOO_LARGE = "OFFSET_METADATA_TOO_LARGE"
    REVISION_OUT_OF_RANGE = "REVISION_OUT_OF_RANGE"
    INVALID_REQUEST = "INVALID_REQUEST"
    UNKNOWN_TOPIC = "UNKNOWN_TOPIC"
    INVALID_PARTITIONS = "INVALID_PARTITIONS"
    PAYLOAD_TOO_LARGE = "PAYLOAD_TOO_LARGE"
    THROTTLED = "THROTTLED"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    GROUP_AUTHORIZATION_FAILED = "GROUP_AUTHORIZATION_FAILED"


def no_member(member_id: str, group_id: str, namespace: str) -> str:
    """What UNKNOWN_MEMBER_ID says to an administrator."""
    return f"No such member {member_id!r} in group {group_id!r} of namespace {namespace!r}"


class RejectedRequest(Exception):
    """A request that is refused before any group sees it: it changed nothing.

    Raised while a request is decoded or checked against the limits; answered with `code`.
    """

    def __init__(self, code: ErrorCode, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.facts: dict[str, Any] = {}
        """What a problem says beside its code and its detail."""


class NotInJournal(RejectedRequest):
    """A reader asked for the lines after one that it has read. The journal lacks some of them, or that one."""

    last_revision: int | None = None
    """The journal's last line, if the reader is ahead of it."""
    incarnation = ""
    """With `last_revision`: the random id of the journal."""

    def __init__(self, after_revision: int, first_revision: int, detail: str) -> None:
        super().__init__(ErrorCode.REVISION_OUT_OF_RANGE, detail)
        self.after_revision = after_revision
        self.first_revision = first_revision
        """The first line that the journal still has."""
        self.facts["first_revision"] = first_revision


class LinesPruned(NotInJournal):
    """A reader asked for lines of a journal that are pruned. To go on behind them in silence would hide a gap."""

    def __init__(self, after_revision: int, first_revision: int) -> None:
        super().__init__(
            after_revision,
            first_revision,
            f"the journal begins at revision {first_revision}: revisions {after_revision + 1} to {first_revision - 1} "
            f"are pruned; read the present state, then read on after revision {first_revision - 1}",
        )


class ReaderIsAhead(NotInJournal):
    """A reader has read a line that the journal does not have. To wait in silence would skip the next lines."""

    def __init__(self, after_revision: int, first_revision: int, last_revision: int, incarnation: str) -> None:
        super().__init__(
            after_revision,
            first_revision,
            f"the journal ends at revision {last_revision}: revision {after_revision} is of another store, or of a "
            "state that this one has lost (a restored backup, a failover); read the present state, then read on after "
            f"revision {last_revision}",
        )
        self.last_revision = last_revision
        self.incarnation = incarnation
        self.facts |= {"last_revision": last_revision, "incarnation": incarnation}


def check_in_journal(after_revision: int, first_revision: int, last_revision: int, incarnation: str) -> None:
    """Raise `LinesPruned` or `ReaderIsAhead` unless a journal with these ends goes on after `after_revision`.

    Every reader of a journal is checked by this rule, in the snapshot from which its lines are read.
    """
    check_not_pruned(after_revision, first_revision)
    if after_revision > last_revision:
        raise ReaderIsAhead(after_revision, first_revision, last_revision, incarnation)


def check_not_pruned(after_revision: int, first_revision: int) -> None:
    """Raise `LinesPruned` unless a journal that begins at `first_revision` has every line after `after_revision`."""
    if after_revision + 1 < first_revision:
        raise LinesPruned(after_revision, first_revision)
