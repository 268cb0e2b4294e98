"""What came of the heartbeats of a session stream, as it travels."""

from __future__ import annotations

from rota.protocol.messages import HeartbeatManyReply
from rota.replica.ports import Answer
from rota.v1.coordinator_pb2 import HeartbeatManyResponse, SessionEvent
from rota.wire.heartbeats import write_result


class Results:
    """The last results of one stream: as a rule the next ones are the same."""

    __slots__ = ("_answers", "_response")

    def __init__(self) -> None:
        self._answers: list[Answer] | None = None
        self._response: HeartbeatManyResponse | None = None

    def event_of(self, answers: list[Answer]) -> SessionEvent:
        """The answer to heartbeats of so many groups."""
        if answers != self._answers:
            response = HeartbeatManyResponse()
            for answer in answers:
                write_result(response.groups.add(), reply_of(answer), answer.revision, answer.epoch)
            self._response, self._answers = response, answers
        return SessionEvent(heartbeat=self._response)


def reply_of(answer: Answer) -> HeartbeatManyReply:
    """The reply to heartbeats of one group."""
    reply = answer.reply
    assert isinstance(reply, HeartbeatManyReply)
    return reply
