"""Calls of a session stream that are carried out without a task."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Protocol

from rota.api.grpc.calls import Calls, Context, within_deadline
from rota.api.grpc.failures import Failure, checked, converted
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

    def under_way(self, request: MemberRequest) -> AbstractContextManager[None]:
        """Entered while the request is."""

    def event_of(self, kind: CallKind, request: MemberRequest, answer: Answer) -> SessionEvent:
        """The answer as it travels, to a request that has succeeded."""

    def answer(self, call: int, outcome: SessionEvent | Failure, operation: str) -> None:
        """Queue the answer to a call."""

    def close(self, call: int) -> None:
        """Forget an open call."""


class SubmittedCall:
    """An open call without a task. It is answered or cancelled, once, and holds its contexts until then."""

    __slots__ = ("_call", "_cancel", "_held", "_kind", "_request", "_session")

    def __init__(self, session: SessionOfCalls, call: int, kind: CallKind, request: MemberRequest) -> None:
        self._session = session
        self._call = call
        self._kind = kind
        self._request = request
        self._held: ExitStack | None = ExitStack()
        """None from its end on."""
        self._cancel: Cancel | None = None
        """None from its end on, too: the coordinator's call knows this one, and both would wait for the collector."""

    def begin(self, calls: Calls, context: Context) -> None:
        """Ask the coordinator in the name of the stream's caller."""
        assert self._held is not None
        try:
            request = within_deadline(self._request, context.time_remaining())
            self._held.enter_context(self._session.under_way(request))
            if parks_for_ms(request):
                self._held.enter_context(calls.metrics.parked(self._kind.rpc.name))
            cancel = calls.coordinator.submit(request, self._answered)
            if self._held is not None:
                self._cancel = cancel
        except Exception as error:
            held = self._end()
            if held is not None:
                held.close()
                self._session.answer(self._call, converted(error, self._kind.rpc.name), self._kind.rpc.name)

    def cancel(self) -> None:
        """No answer is wanted. A call that does not park goes on all the same."""
        cancel, held = self._cancel, self._end()
        if held is not None:
            held.close()
            unpark(cancel)

    def _answered(self, answer: Answer) -> None:
        held, kind = self._end(), self._kind
        if held is None:
            return
        outcome: SessionEvent | Failure
        try:
            with held:
                checked(answer)
            outcome = self._session.event_of(kind, self._request, answer)
        except Exception as error:
            outcome = converted(error, kind.rpc.name)
        self._session.answer(self._call, outcome, kind.rpc.name)

    def _end(self) -> ExitStack | None:
        held, self._held, self._cancel = self._held, None, None
        if held is not None:
            self._session.close(self._call)
        return held
