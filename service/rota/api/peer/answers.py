"""The owner's answers to heartbeats and commits that a peer has forwarded, as they go back to it."""

from __future__ import annotations

from collections.abc import Sequence

from rota.protocol.messages import CommitReply, HeartbeatManyReply, HeartbeatReply
from rota.replica.forwarding import as_moved
from rota.replica.ports import Answer
from rota.wire.peer_commits import pack_commit_answer
from rota.wire.peer_heartbeats import PackedAnswer, line_of_answer, pack_answers


def packed(answers: Sequence[Answer]) -> bytes:
    """In their order."""
    return pack_answers([_packed(as_moved(answer)) for answer in answers])


def packed_line(answer: Answer) -> bytes:
    """One of them."""
    return line_of_answer(_packed(as_moved(answer)))


def packed_commit(answer: Answer) -> bytes:
    """The one to a commit."""
    answer = as_moved(answer)
    assert isinstance(answer.reply, CommitReply)
    return pack_commit_answer(answer.reply, answer.revision, answer.epoch, answer.owner)


def _packed(answer: Answer) -> PackedAnswer:
    assert isinstance(answer.reply, HeartbeatReply | HeartbeatManyReply)
    return answer.reply, answer.revision, answer.epoch, answer.owner
