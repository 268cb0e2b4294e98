"""The owner's answers to heartbeats and commits that a peer has forwarded, as they go back to it."""

from __future__ import annotations

from collections.abc import Sequence

from rota.protocol.messages import CommitReply, HeartbeatManyReply, HeartbeatReply
from rota.replica.forwarding import as_moved
from rota.replica.ports import Answer
from rota.wire.peer_commits import pack_commit_answer
from rota.wire.peer_heartbeats import MAX_LINE, join_lines, line_of_answer

MOST_LINES = 1_000
_lines_of_same: dict[int, tuple[Answer, bytes]] = {}
"""By `id` of answers that are kept alive here: members of a group get the same object until something happens in it."""


def packed(answers: Sequence[Answer]) -> bytes:
    """In their order."""
    known, lines = _lines_of_same, []
    for answer in answers:
        kept = known.get(id(answer))
        lines.append(kept[1] if kept is not None else _line_of(answer))
    return join_lines(lines)


def packed_commit(answer: Answer) -> bytes:
    """The one to a commit."""
    answer = as_moved(answer)
    assert isinstance(answer.reply, CommitReply)
    return pack_commit_answer(answer.reply, answer.revision, answer.epoch, answer.owner)


def _line_of(answer: Answer) -> bytes:
    moved = as_moved(answer)
    reply = moved.reply
    assert isinstance(reply, HeartbeatReply | HeartbeatManyReply)
    line = line_of_answer(reply, moved.revision, moved.epoch, moved.owner)
    if isinstance(reply, HeartbeatReply) and len(line) <= MAX_LINE:
        if len(_lines_of_same) >= MOST_LINES:
            _lines_of_same.clear()
        _lines_of_same[id(answer)] = answer, line
    return line
