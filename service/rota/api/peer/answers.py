"""The owner's answers to heartbeats that a peer has forwarded, as they go back to it."""

from __future__ import annotations

from collections.abc import Sequence

from rota.protocol.messages import HeartbeatManyReply, HeartbeatReply
from rota.replica.forwarding import as_moved
from rota.replica.ports import Answer
from rota.wire.peer_heartbeats import PackedAnswer, pack_answers


def packed(answers: Sequence[Answer]) -> bytes:
    """In their order."""
    return pack_answers([_packed(as_moved(answer)) for answer in answers])


def _packed(answer: Answer) -> PackedAnswer:
    assert isinstance(answer.reply, HeartbeatReply | HeartbeatManyReply)
    return answer.reply, answer.revision, answer.epoch, answer.owner
