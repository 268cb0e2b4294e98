"""Calls of a session stream that are carried out without a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from rota.api.grpc.bound_calls import Bound
from rota.api.grpc.calls import Calls, Context, within_deadline
from rota.api.grpc.failures import Failure, converted, failure_in
from rota.observability.metrics import Count
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import CommitOffsets, JoinGroup, LeaveGroup, SyncGroup, parks_for_ms
from rota.replica.ports import Answer, Cancel, unpark
from rota.v1.coordinator_pb2 import SessionEvent
from rota.wire.rpcs import RPCS, Rpc

MemberRequest = JoinGroup | SyncGroup | LeaveGroup | CommitOffsets
"""Calls of a stream that are neither heartbeats nor about the stream itself."""


@dataclass(frozen=True, slots=True)
class CallKind:
    """How one kind of call travels on the stream: its rpc, and the event that answers it."""

    rpc: Rpc
    answer: str


CALL_KINDS = {
    "join": CallKind(RPCS[JoinGroup], "joined"),
    "sync": CallKind(RPCS[SyncGroup], "synced"),
    "leave": CallKind(RPCS[LeaveGroup], "left"),
    "commit": CallKind(RPCS[CommitOffsets], "committed"),
}


class SessionOfCalls(Protocol):
    """What a call knows of its stream."""

    def begin_bound(self, request: MemberRequest) -> Bound | None:
        """Bind the member of a call to the stream while the call is under way."""

    def event_of(self, kind: CallKind, request: MemberRequest, answer: Answer) -> SessionEvent:
        """The answer as it travels, to a request that has succeeded."""

    def answer(self, call: int, outcome: SessionEvent | Failure, operation: str) -> None:
        """Queue the answer to a call."""

    def close(self, call: int) -> None:
        """Forget an open call."""


class SubmittedCall:
    """An open call without a task. It is answered or cancelled, once, and its member is bound until then."""

    __slots__ = ("_bound", "_call", "_cancel", "_is_open", "_kind", "_request", "_session", "_waiters")

    def __init__(self, session: SessionOfCalls, call: int, kind: CallKind, request: MemberRequest) -> None:
        self._session = session
        self._call = call
        self._kind = kind
        self._request = request
        self._is_open = True
        self._bound: Bound | None = None
        self._waiters: Count | None = None
        """Where the call is counted while it is parked."""
        self._cancel: Cancel | None = None
        """None from its end on: the coordinator's call knows this one, and both would wait for the collector."""

    def begin(self, calls: Calls, context: Context) -> None:
        """Ask the coordinator in the name of the stream's caller."""
        try:
            request = within_deadline(self._request, context.time_remaining())
            self._bound = self._session.begin_bound(request)
            if parks_for_ms(request):
                self._waiters = calls.metrics.waiters(self._kind.rpc.name)
                self._waiters.number += 1
            cancel = calls.coordinator.submit(request, self._answered)
            if self._is_open:
                self._cancel = cancel
        except Exception as error:
            if self._end(None):
                self._session.answer(self._call, converted(error, self._kind.rpc.name), self._kind.rpc.name)

    def cancel(self) -> None:
        """No answer is wanted. A call that does not park goes on all the same."""
        cancel = self._cancel
        try:
            if self._end(None):
                unpark(cancel)
        except Exception as error:  # It concerns no other call of the stream.
            converted(error, self._kind.rpc.name)

    def _answered(self, answer: Answer) -> None:
        outcome: SessionEvent | Failure
        try:
            if not self._end(answer.reply.error):
                return
            outcome = failure_in(answer) or self._session.event_of(self._kind, self._request, answer)
        except Exception as error:
            outcome = converted(error, self._kind.rpc.name)
        self._session.answer(self._call, outcome, self._kind.rpc.name)

    def _end(self, code: ErrorCode | None) -> bool:
        """End the call, with this code where it has an answer; False where it has ended before."""
        if not self._is_open:
            return False
        self._is_open, self._cancel = False, None
        self._session.close(self._call)
        if self._waiters is not None:
            self._waiters.number -= 1
        if self._bound is not None:
            self._bound.end(code)
        return True
