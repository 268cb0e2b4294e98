"""What replicas agree on about answers: how long a peer may take, and how one that stops refuses."""

from __future__ import annotations

from dataclasses import replace

from rota.protocol.errors import ErrorCode
from rota.protocol.limits import MAX_WAIT_MS
from rota.protocol.messages import Heartbeat, Request, parks_for_ms
from rota.replica.ports import Answer

ANSWER_S = 5.0
HEARTBEATS_S = 1.0
"""An owner answers these from memory. Who gets no answer is kept alive through the liveness store, if there is one,
and that has to come before the member gives the call up: see `MembershipSettings.heartbeat_grace_ms`."""


def answer_timeout_s(request: Request) -> float:
    """How long a peer may take: as long as the request lets it wait, and a little more."""
    answer_s = HEARTBEATS_S if isinstance(request, Heartbeat) else ANSWER_S
    return min(parks_for_ms(request), MAX_WAIT_MS) / 1000 + answer_s


def as_moved(answer: Answer) -> Answer:
    """A replica that stops has decided nothing for a call that it refuses: the forwarder may ask the next owner.

    The error alone does not say that: a write of unknown outcome is answered with the same one.
    """
    if not answer.undecided or answer.reply.error is not ErrorCode.COORDINATOR_NOT_AVAILABLE:
        return answer
    return replace(answer, reply=replace(answer.reply, error=ErrorCode.NOT_COORDINATOR))
