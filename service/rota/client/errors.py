"""The tree of errors that the SDK raises. The class says what to do; `code`, in Kafka's names, says what happened."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Final

from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.wire.problems import Problem
from rota.protocol.wire.status import STATUS, Remedy


class CoordinatorError(Exception):
    """An error between a client and its coordinator.

    Each error has the `code` that the coordinator answered (or the nearest one, without an answer), `retriable` (the
    very same call may succeed later) and `remedy` (what to do about it). A `Member` does by itself what a remedy asks
    of it; the program decides about errors that it raises. docs/reference/errors.md lists the codes.

        CoordinatorError
        ├── Unavailable                     nothing is decided: try again later
        │   ├── CoordinatorUnreachable      no answer at all; the call may or may not have been carried out
        │   └── Throttled                   too many requests
        ├── MembershipLost                  another member may have the share: stop, do not commit
        │   ├── LeadershipLost              the term is over
        │   ├── PermitLost                  the permit is another member's, or may be
        │   └── FencedInstanceId            another process took over this instance id: give up
        ├── RebalanceInProgress             the member joins again by itself; wait for its next assignment
        ├── NotFound                        there is no such group or topic
        │   └── RevisionOutOfRange          the journal does not have these lines
        ├── AccessDenied                    no valid token, or no permission
        └── InvalidRequest                  the request cannot succeed as it is: correct it
    """

    code: ErrorCode = ErrorCode.INVALID_REQUEST

    def __init__(self, detail: str = "", code: ErrorCode | None = None) -> None:
        """`code` defaults to the class's code; another one is added to the text."""
        suffix = "" if code in (None, self.code) else f" ({code})"
        self.code = code or self.code
        super().__init__((detail or STATUS[self.code].title) + suffix)
        self.detail = detail
        self.retry_after = 0.0
        """The pause that the coordinator asked for in seconds; 0 if it did not."""

    @property
    def retriable(self) -> bool:
        """Whether the same call may succeed later."""
        return STATUS[self.code].retriable

    @property
    def remedy(self) -> Remedy:
        """The action to take, as the protocol names it."""
        return STATUS[self.code].remedy


class Unavailable(CoordinatorError):
    """The coordinator cannot answer now: its store is unavailable, it is loading the group or stopping, another replica
    coordinates the group, or the group is full. Try again later.
    """

    code = ErrorCode.COORDINATOR_NOT_AVAILABLE


class UnreachableKind(StrEnum):
    """The cause of a missing answer, in one word for logs and metrics."""

    CONNECT = "connect"
    """No connection could be opened: refused, no route, or no response in time."""
    DNS = "dns"
    """The host name could not be resolved."""
    TLS = "tls"
    """The TLS handshake failed: a certificate that is not trusted, or a server without TLS."""
    TIMEOUT = "timeout"
    """The call was sent, and no answer arrived in time."""
    FOREIGN_ANSWER = "foreign_answer"
    """Another program answered, such as a proxy: the answer has no error code or reply of Rota's."""
    BROKEN = "broken"
    """The connection broke during the call, or the call failed in an unexpected way."""
    CLOSED = "closed"
    """The client was closed."""
    CREDENTIALS = "credentials"
    """The token or the certificates could not be read or sent."""


class CoordinatorUnreachable(Unavailable):
    """No answer arrived. The call may have been carried out, if it `was_sent`: repeat it if that is harmless.

    `kind` is the cause in one word, `detail` a sentence that names the address. `is_lasting`: the next call will
    probably fail in the same way, because the program at that address is not Rota.
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


class Throttled(Unavailable):
    """Too many requests. Try again later, and less often."""

    code = ErrorCode.THROTTLED


class MembershipLost(CoordinatorError):
    """This member has no share (any more): the coordinator removed it (`UNKNOWN_MEMBER_ID`), or the group has moved to
    another generation (`ILLEGAL_GENERATION`). Stop work that depends on the share; the member joins again by itself.
    """

    code = ErrorCode.UNKNOWN_MEMBER_ID


class LeadershipLost(MembershipLost):
    """This term is over: its body was cancelled. Another member may lead; wait for the next term."""


class PermitLost(MembershipLost):
    """This permit is not held any more: its body was cancelled. Another member may have it; ask for one again."""


class FencedInstanceId(MembershipLost):
    """Another process took over this instance id. Stop for good: joining again would only fence the other."""

    code = ErrorCode.FENCED_INSTANCE_ID


class RebalanceInProgress(CoordinatorError):
    """The group is between two generations. The member joins the next by itself: wait for its assignment; the new
    holder repeats uncommitted work.
    """

    code = ErrorCode.REBALANCE_IN_PROGRESS


class NotFound(CoordinatorError):
    """There is no such group (`GROUP_ID_NOT_FOUND`) or topic (`UNKNOWN_TOPIC`), or the group was deleted
    (`GROUP_DELETED`). A group exists after the first join or commit, a topic after its registration.
    """

    code = ErrorCode.GROUP_ID_NOT_FOUND


class RevisionOutOfRange(NotFound):
    """The journal does not have the requested events. Read the group's current state, then continue the watch.

    If they are pruned, `first_revision` is the first remaining event, and `watch(group_id, error.first_revision - 1)`
    continues there. `watch(group_id, "earliest")` starts there directly.

    If the store was restored or replaced, the journal ends before the event to continue after: `last_revision` is then
    its last event (otherwise None), and `watch(group_id, error.last_revision)` continues there. `incarnation` is then
    the journal's random id, which changes when a backup is restored.
    """

    code = ErrorCode.REVISION_OUT_OF_RANGE

    first_revision: int = 0
    last_revision: int | None = None
    incarnation: str = ""


class AccessDenied(CoordinatorError):
    """The caller has no valid token (`UNAUTHENTICATED`), or no permission for this call on this group
    (`GROUP_AUTHORIZATION_FAILED`). Send a valid token, or ask the administrator.
    """

    code = ErrorCode.GROUP_AUTHORIZATION_FAILED


class InvalidRequest(CoordinatorError):
    """The request is invalid, or invalid in the group's current state, such as `NON_EMPTY_GROUP`. Correct it as the
    detail says.
    """


_CLASSES: Final[dict[ErrorCode, type[CoordinatorError]]] = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE: Unavailable,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: Unavailable,
    ErrorCode.NOT_COORDINATOR: Unavailable,
    ErrorCode.GROUP_MAX_SIZE_REACHED: Unavailable,
    ErrorCode.THROTTLED: Throttled,
    ErrorCode.UNKNOWN_MEMBER_ID: MembershipLost,
    ErrorCode.ILLEGAL_GENERATION: MembershipLost,
    ErrorCode.FENCED_INSTANCE_ID: FencedInstanceId,
    ErrorCode.REBALANCE_IN_PROGRESS: RebalanceInProgress,
    ErrorCode.ASSIGNMENT_FAILED: RebalanceInProgress,
    ErrorCode.MEMBER_ID_REQUIRED: RebalanceInProgress,
    ErrorCode.GROUP_ID_NOT_FOUND: NotFound,
    ErrorCode.GROUP_DELETED: NotFound,
    ErrorCode.UNKNOWN_TOPIC: NotFound,
    ErrorCode.REVISION_OUT_OF_RANGE: RevisionOutOfRange,
    ErrorCode.UNAUTHENTICATED: AccessDenied,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: AccessDenied,
}
"""All other codes are raised as `InvalidRequest`."""


@contextmanager
def typed_errors() -> Iterator[None]:
    """Raise the coordinator's error for a name that the protocol does not allow."""
    try:
        yield
    except RejectedRequest as error:
        raise error_for(error.code, error.detail) from None


def error_for(code: ErrorCode, detail: str = "", retry_after_ms: int = 0) -> CoordinatorError:
    """Return the error for an answer's code, which must not be `NONE`."""
    error = _CLASSES.get(code, InvalidRequest)(detail, code)
    error.retry_after = retry_after_ms / 1000
    return error


def error_in(problem: Problem) -> CoordinatorError:
    """Return the error for a problem document or an HTTP status of Rota's."""
    error = error_for(problem.code, problem.detail, problem.retry_after_ms)
    if isinstance(error, RevisionOutOfRange):
        error.first_revision = problem.first_revision
        error.last_revision, error.incarnation = problem.last_revision, problem.incarnation
    return error


_LOSSES = (MembershipLost, RebalanceInProgress, Unavailable)
_log = logging.getLogger(__name__)


def without_losses(error: BaseException) -> BaseException | None:
    """Return the part of an error of work that the loss of its share does not explain; None if it explains all.

    An error that a member meets at the end of its share is explained by the loss, and so is one that was raised while
    such an error was handled. An exception group is split. The same object is returned if no part is explained.
    """
    if not isinstance(error, BaseExceptionGroup):
        return None if _is_loss(error) else error
    losses, rest = error.split(_is_loss)
    return error if losses is None else rest


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and all that its traceback shows: causes, contexts and the members of groups."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += getattr(each, "exceptions", ())
            waiting.append(each.__cause__ if each.__suppress_context__ else each.__context__)


def _is_loss(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_loss, error.exceptions))
    return any(isinstance(each, _LOSSES) for each in chain_of(error))


@contextmanager
def losses_are_expected(what: str, is_over: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Log a loss that the program's function `what` raises after its share ended, and raise the unexplained rest."""
    try:
        yield
    except Exception as error:
        rest = without_losses(error)
        if rest is error or not is_over():
            raise
        if rest is not None:
            raise rest from None
        _log.warning("%s raised an error on a share that is not held any more, or is being revoked: %r", what, error)
