"""Results of calls that did not succeed: the one place where exceptions and answers become errors of the protocol."""

from __future__ import annotations

import logging

from rota.core.replica.ports import Answer, StoreUnavailable
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.messages import JoinReply

_log = logging.getLogger(__name__)


class InternalError(RejectedRequest):
    """A bug of ours. The outcome of the request is unknown, and this code says so to a client."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.COORDINATOR_NOT_AVAILABLE, "an internal error; see the log")


def rejection_of(error: Exception, operation: str) -> RejectedRequest:
    """The rejection that an exception means; its frames, which have the request, are dropped."""
    match error:
        case RejectedRequest():
            return error.with_traceback(None)
        case StoreUnavailable():
            return RejectedRequest(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the store cannot be reached")
        case MemoryError():
            _log.error("the server is short of memory, so it rejects a request", extra={"operation": operation})
            return RejectedRequest(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the server is short of memory")
        case _:
            _log.error("a request failed", exc_info=error, extra={"operation": operation})
            return InternalError()


def rejection_in(answer: Answer) -> RejectedRequest:
    """The error of an answer that has one, with the place in the journal that it reflects."""
    reply = answer.reply
    rejected = RejectedRequest(reply.error, reply.detail)
    rejected.facts |= {"revision": answer.revision, "epoch": answer.epoch}
    if isinstance(reply, JoinReply) and reply.member_id:
        rejected.facts["member_id"] = reply.member_id
    if answer.owner:
        rejected.facts["owner"] = answer.owner
    return rejected
