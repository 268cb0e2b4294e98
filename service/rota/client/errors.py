"""The one tree of errors that the SDK raises; the names are Kafka's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import ClassVar

from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.wire.problems import Problem
from rota.wire.status import STATUS, Remedy


class CoordinatorError(Exception):
    """Whatever goes wrong between a client and its coordinator.

    Each leaf has the `code` that the coordinator answered (or the nearest one, without an answer), `retriable`
    (the very same call may succeed later) and `remedy` (what to do about it). A `Member` does by itself what a
    remedy asks of it; what it raises is for the program to decide.

        CoordinatorError
        ├── Unavailable                     nothing is decided: try again later
        │   ├── CoordinatorUnreachable      no answer at all; the call may or may not have been carried out
        │   ├── CoordinatorNotAvailable
        │   ├── CoordinatorLoadInProgress
        │   ├── NotCoordinator
        │   ├── Throttled
        │   └── GroupMaxSizeReached
        ├── MembershipLost                  another member may have the share: stop, do not commit
        │   ├── LeadershipLost              the term is over
        │   ├── PermitLost                  the permit is another member's, or may be
        │   ├── UnknownMemberId
        │   ├── IllegalGeneration
        │   └── FencedInstanceId            another process took over this instance id: give up
        ├── Rebalancing                     the member joins again by itself; wait for its next assignment
        │   ├── RebalanceInProgress
        │   ├── AssignmentFailed
        │   └── MemberIdRequired
        ├── NotFound
        │   ├── GroupIdNotFound
        │   ├── UnknownTopic
        │   └── RevisionOutOfRange          the journal does not have these lines
        ├── AccessDenied
        │   ├── Unauthenticated
        │   └── GroupAuthorizationFailed
        └── Refused                         the request itself cannot succeed: correct it
            ├── InvalidRequest
            ├── InvalidGroupId
            ├── InvalidSessionTimeout
            ├── InvalidPartitions
            ├── InconsistentGroupProtocol
            ├── NonEmptyGroup
            ├── GroupSubscribedToTopic
            ├── PayloadTooLarge
            └── OffsetMetadataTooLarge
    """

    code: ClassVar[ErrorCode] = ErrorCode.INVALID_REQUEST

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail or STATUS[self.code].title)
        self.detail = detail
        self.retry_after = 0.0
        """For how many seconds the coordinator asked to be left alone; 0 if it did not."""

    @property
    def retriable(self) -> bool:
        """Whether the very same call, unchanged, may succeed later."""
        return STATUS[self.code].retriable

    @property
    def remedy(self) -> Remedy:
        """What to do about it, in the words of the protocol."""
        return STATUS[self.code].remedy


# --- nothing is decided: try again later ------------------------------------------------------


class Unavailable(CoordinatorError):
    """The coordinator cannot answer now. Try again later."""

    code = ErrorCode.COORDINATOR_NOT_AVAILABLE


class UnreachableKind(StrEnum):
    """Why a call got no answer of Rota's, in one word that logs and metrics can count."""

    CONNECT = "connect"
    """No connection could be opened: refused, no route, or no response in time."""
    DNS = "dns"
    """The host name could not be resolved."""
    TLS = "tls"
    """The TLS handshake failed: a certificate that is not trusted, or a server without TLS."""
    TIMEOUT = "timeout"
    """The call was sent, and no answer came in time."""
    FOREIGN_ANSWER = "foreign_answer"
    """Another program answered, such as a proxy: the answer has no error code of Rota's and is no reply of its."""
    BROKEN = "broken"
    """The connection broke during the call, or the call failed in an unexpected way."""
    CLOSED = "closed"
    """The client was closed."""
    CREDENTIALS = "credentials"
    """The token or the certificates could not be read or sent."""


class CoordinatorUnreachable(Unavailable):
    """No answer came. The call may have been carried out, if it `was_sent`: repeat it where that does no harm.

    `kind` is the cause in one word, `detail` the cause in a sentence that names the address. `is_lasting`: the next
    call will most likely fail in the same way, because what answers at that address is not Rota.
    """

    def __init__(
        self,
        detail: str = "",
        *,
        was_sent: bool = True,
        kind: UnreachableKind = UnreachableKind.BROKEN,
        is_lasting: bool = False,
    ) -> None:
        super().__init__(detail)
        self.was_sent = was_sent
        self.kind = kind
        self.is_lasting = is_lasting


class CoordinatorNotAvailable(Unavailable):
    """The coordinator's store is away, or it is stopping. Try again later."""


class CoordinatorLoadInProgress(Unavailable):
    """The coordinator is loading the group. Try again in a moment."""

    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


class NotCoordinator(Unavailable):
    """Another replica coordinates this group. Try again; the next call goes to another address."""

    code = ErrorCode.NOT_COORDINATOR


class Throttled(Unavailable):
    """Too many requests. Try again later, and less often."""

    code = ErrorCode.THROTTLED


class GroupMaxSizeReached(Unavailable):
    """The group is full. Try again when a member has left."""

    code = ErrorCode.GROUP_MAX_SIZE_REACHED


# --- the share is lost ------------------------------------------------------------------------


class MembershipLost(CoordinatorError):
    """This member holds nothing (any more). Stop work that rests on it; the member joins again by itself."""

    code = ErrorCode.UNKNOWN_MEMBER_ID


class LeadershipLost(MembershipLost):
    """This term is over: its body was cancelled. Another member may lead; wait for the next term."""


class PermitLost(MembershipLost):
    """This permit is not held any more: its body was cancelled. Another member may have it; ask for one again."""


class UnknownMemberId(MembershipLost):
    """The coordinator removed this member. Stop; the member joins again as a new one."""


class IllegalGeneration(MembershipLost):
    """The group has moved to another generation. Stop what belongs to the old one, and do not commit it."""

    code = ErrorCode.ILLEGAL_GENERATION


class FencedInstanceId(MembershipLost):
    """Another process took over this instance id. Stop for good: joining again would only fence the other."""

    code = ErrorCode.FENCED_INSTANCE_ID


# --- the group is between two generations -----------------------------------------------------


class Rebalancing(CoordinatorError):
    """The group is between two generations. The member joins the next by itself: wait for its assignment."""

    code = ErrorCode.REBALANCE_IN_PROGRESS


class RebalanceInProgress(Rebalancing):
    """The group rebalances. Wait for the next assignment; the new owner repeats uncommitted work."""


class AssignmentFailed(Rebalancing):
    """The leader could not assign. Look at its detail; the members join again after a pause."""

    code = ErrorCode.ASSIGNMENT_FAILED


class MemberIdRequired(Rebalancing):
    """A newcomer must join again with the member id that it was given. `Member` does."""

    code = ErrorCode.MEMBER_ID_REQUIRED


# --- not there, not allowed, not possible -----------------------------------------------------


class NotFound(CoordinatorError):
    """What the call names is not there."""

    code = ErrorCode.GROUP_ID_NOT_FOUND


class GroupIdNotFound(NotFound):
    """There is no such group. Groups come to be when a member joins or an offset is committed."""


class UnknownTopic(NotFound):
    """There is no such topic. Register it, or check its name."""

    code = ErrorCode.UNKNOWN_TOPIC


class RevisionOutOfRange(NotFound):
    """The journal does not have the lines that were asked for. Read the group's present state, then watch on.

    Either they are pruned: `first_revision` is the first line that the journal still has, and
    `watch(group_id, error.first_revision - 1)` goes on there. `watch(group_id, "earliest")` begins there at once.

    Or the store went back to an earlier state, or is another one, and the journal ends before the line to go on after:
    `last_revision` is then its last line (otherwise None), and `watch(group_id, error.last_revision)` goes on there.
    `incarnation` is the journal's random id then: another one than before where a backup was restored.
    """

    code = ErrorCode.REVISION_OUT_OF_RANGE

    def __init__(
        self, detail: str = "", *, first_revision: int = 0, last_revision: int | None = None, incarnation: str = ""
    ) -> None:
        super().__init__(detail)
        self.first_revision = first_revision
        self.last_revision = last_revision
        self.incarnation = incarnation


class AccessDenied(CoordinatorError):
    """The coordinator does not allow it."""

    code = ErrorCode.GROUP_AUTHORIZATION_FAILED


class Unauthenticated(AccessDenied):
    """The caller is not authenticated. Send a valid token."""

    code = ErrorCode.UNAUTHENTICATED


class GroupAuthorizationFailed(AccessDenied):
    """The caller may not do this to this group. Ask its administrator."""


class Refused(CoordinatorError):
    """The request cannot succeed as it is. Correct it."""


class InvalidRequest(Refused):
    """A field is missing, malformed or out of bounds; the detail says which."""


class InvalidGroupId(Refused):
    """Group ids are 1 to 249 of `A-Z a-z 0-9 . _ - :`."""

    code = ErrorCode.INVALID_GROUP_ID


class InvalidSessionTimeout(Refused):
    """The session timeout is outside the coordinator's bounds; the detail says which they are."""

    code = ErrorCode.INVALID_SESSION_TIMEOUT


class InvalidPartitions(Refused):
    """Partition counts are at least 1 and only grow."""

    code = ErrorCode.INVALID_PARTITIONS


class InconsistentGroupProtocol(Refused):
    """The group's members share no protocol with this one. Give all the same protocol type, and one name in common."""

    code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL


class NonEmptyGroup(Refused):
    """The group has members. Stop them first."""

    code = ErrorCode.NON_EMPTY_GROUP


class GroupSubscribedToTopic(Refused):
    """Members of the group are subscribed to the topic. Stop them first."""

    code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


class PayloadTooLarge(Refused):
    """Larger than the coordinator admits; the detail names the part."""

    code = ErrorCode.PAYLOAD_TOO_LARGE


class OffsetMetadataTooLarge(Refused):
    """An offset's metadata is too long; its partition was not committed, the others were."""

    code = ErrorCode.OFFSET_METADATA_TOO_LARGE


def _leaves(kind: type[CoordinatorError]) -> Iterator[type[CoordinatorError]]:
    for child in kind.__subclasses__():
        if child.__subclasses__():
            yield from _leaves(child)
        else:
            yield child


_LEAF_OF = {leaf.code: leaf for leaf in _leaves(CoordinatorError) if leaf is not CoordinatorUnreachable}


@contextmanager
def typed_errors() -> Iterator[None]:
    """A name that the protocol does not admit is the error that the coordinator would answer."""
    try:
        yield
    except RejectedRequest as error:
        raise error_for(error.code, error.detail) from None


def error_for(code: ErrorCode, detail: str = "", retry_after_ms: int = 0) -> CoordinatorError:
    """The error that stands for an answer's code. `NONE` is no error and must not be asked for."""
    error = _LEAF_OF[code](detail)
    error.retry_after = retry_after_ms / 1000
    return error


def error_in(problem: Problem) -> CoordinatorError:
    """The error that stands for a problem document or a status of Rota's."""
    error = error_for(problem.code, problem.detail, problem.retry_after_ms)
    if isinstance(error, RevisionOutOfRange):
        error.first_revision = problem.first_revision
        error.last_revision, error.incarnation = problem.last_revision, problem.incarnation
    return error
