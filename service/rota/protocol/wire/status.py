"""The one table from error code to HTTP status, gRPC status and what the caller should do next (protocol.md §6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from rota.protocol.errors import ErrorCode


class Remedy(StrEnum):
    """What a caller does about an error."""

    NOTHING = "nothing"
    RETRY = "retry"
    """The same request again, later (after `Retry-After`)."""
    RETRY_WITH_MEMBER_ID = "retry with member_id"
    """Join again at once, with the member id that the answer brought; where a fence was checked, name the member."""
    RETRY_AT_OWNER = "retry at owner"
    REJOIN = "rejoin"
    """Join again with the member id at hand."""
    REJOIN_AS_NEW = "rejoin as new"
    """Join again without a member id: the coordinator does not know it any more."""
    GIVE_UP = "give up"
    """Another process has this identity; stop, because joining again would only fence that one."""
    READ_STATE = "read state"
    """Lines of the journal are gone: read the present state instead, then go on at `first_revision`, or after
    `last_revision` where the answer has one."""
    CHECK_NAME = "check name"
    """What the request names is not there: its name may be mistyped, it may be deleted or in another namespace."""
    FIX_REQUEST = "fix request"
    """The request itself is wrong; the same one will never succeed."""


@dataclass(frozen=True, slots=True)
class Status:
    """How one error code is reported.

    `retriable`: the very same request, unchanged, may succeed later. Codes that want a rejoin are not.
    """

    http: int
    grpc: str
    retriable: bool
    remedy: Remedy
    title: str
    retry_after_s: int | None = None


def _retriable(http: int, grpc: str, title: str, *, after_s: int) -> Status:
    return Status(http, grpc, True, Remedy.RETRY, title, after_s)


def _final(http: int, grpc: str, remedy: Remedy, title: str) -> Status:
    return Status(http, grpc, False, remedy, title)


_FIX = Remedy.FIX_REQUEST

STATUS: Mapping[ErrorCode, Status] = MappingProxyType(
    {
        ErrorCode.NONE: _final(200, "OK", Remedy.NOTHING, "Success"),
        ErrorCode.MEMBER_ID_REQUIRED: _final(
            428, "FAILED_PRECONDITION", Remedy.RETRY_WITH_MEMBER_ID, "The request needs a member id"
        ),
        ErrorCode.REBALANCE_IN_PROGRESS: _final(409, "ABORTED", Remedy.REJOIN, "The group is rebalancing"),
        ErrorCode.ASSIGNMENT_FAILED: _final(409, "ABORTED", Remedy.REJOIN, "The leader could not assign"),
        ErrorCode.ILLEGAL_GENERATION: _final(
            412, "FAILED_PRECONDITION", Remedy.REJOIN, "Not the group's current generation"
        ),
        ErrorCode.FENCED_INSTANCE_ID: _final(
            412, "FAILED_PRECONDITION", Remedy.GIVE_UP, "Another member took over this instance id"
        ),
        ErrorCode.UNKNOWN_MEMBER_ID: _final(404, "NOT_FOUND", Remedy.REJOIN_AS_NEW, "No such member in the group"),
        ErrorCode.GROUP_ID_NOT_FOUND: _final(404, "NOT_FOUND", Remedy.CHECK_NAME, "No such group"),
        ErrorCode.GROUP_DELETED: _final(410, "NOT_FOUND", Remedy.CHECK_NAME, "The group was deleted"),
        ErrorCode.UNKNOWN_TOPIC: _final(404, "NOT_FOUND", Remedy.CHECK_NAME, "No such topic"),
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL: _final(
            409, "FAILED_PRECONDITION", _FIX, "Not a protocol that the group agrees on"
        ),
        ErrorCode.NON_EMPTY_GROUP: _final(409, "FAILED_PRECONDITION", _FIX, "The group has members"),
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: _final(
            409, "FAILED_PRECONDITION", _FIX, "The group is subscribed to the topic"
        ),
        ErrorCode.GROUP_MAX_SIZE_REACHED: _retriable(429, "RESOURCE_EXHAUSTED", "The group is full", after_s=5),
        ErrorCode.THROTTLED: _retriable(429, "RESOURCE_EXHAUSTED", "Too many requests", after_s=1),
        ErrorCode.NOT_COORDINATOR: Status(
            421, "UNAVAILABLE", True, Remedy.RETRY_AT_OWNER, "Another replica coordinates this group"
        ),
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: _retriable(
            503, "UNAVAILABLE", "The coordinator is loading the group", after_s=1
        ),
        ErrorCode.COORDINATOR_NOT_AVAILABLE: _retriable(
            503, "UNAVAILABLE", "The coordinator cannot answer now", after_s=1
        ),
        ErrorCode.INVALID_GROUP_ID: _final(400, "INVALID_ARGUMENT", _FIX, "Not a valid group id"),
        ErrorCode.INVALID_SESSION_TIMEOUT: _final(400, "INVALID_ARGUMENT", _FIX, "Session timeout out of bounds"),
        ErrorCode.INVALID_PARTITIONS: _final(400, "INVALID_ARGUMENT", _FIX, "Not a valid number of partitions"),
        ErrorCode.INVALID_REQUEST: _final(400, "INVALID_ARGUMENT", _FIX, "Not a valid request"),
        ErrorCode.PAYLOAD_TOO_LARGE: _final(413, "INVALID_ARGUMENT", _FIX, "Larger than the coordinator admits"),
        ErrorCode.REVISION_OUT_OF_RANGE: _final(
            410, "OUT_OF_RANGE", Remedy.READ_STATE, "The journal does not have these lines"
        ),
        ErrorCode.OFFSET_METADATA_TOO_LARGE: _final(413, "INVALID_ARGUMENT", _FIX, "Offset metadata too large"),
        ErrorCode.UNAUTHENTICATED: _final(401, "UNAUTHENTICATED", _FIX, "Authentication required"),
        ErrorCode.GROUP_AUTHORIZATION_FAILED: _final(403, "PERMISSION_DENIED", _FIX, "Not allowed"),
    }
)
