"""Commits and their answers between workers: they come back as they were, and nothing else comes in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rota.protocol.errors import ErrorCode
from rota.protocol.messages import CommitOffsets, CommitReply, OffsetToCommit, PartitionResult
from rota.wire.envelopes import MalformedEnvelope
from rota.wire.peer_commits import pack_commit, pack_commit_answer, unpack_commit, unpack_commit_answer

OFFSETS = (OffsetToCommit("t", 0, 7), OffsetToCommit("ü", 1, 2**63 - 1, 3, "meta\u00e9", 60_000, 4))


@pytest.mark.parametrize(
    "commit",
    [
        CommitOffsets("default", "g", 3, OFFSETS, "m"),
        CommitOffsets("default", "g", -1, ()),
        CommitOffsets("default", "g", 3, OFFSETS, "m", group_instance_id="i", subject="token:worker"),
    ],
)
def test_a_commit_comes_back_as_it_was(commit: CommitOffsets) -> None:
    assert unpack_commit(pack_commit(commit)) == commit


def test_half_of_a_character_is_refused_by_the_owner() -> None:
    commit = CommitOffsets("default", "g", 3, (OffsetToCommit("t", 0, 7, metadata="\ud800"),), "m")

    with pytest.raises(MalformedEnvelope):
        unpack_commit(pack_commit(commit))


def test_an_answer_comes_back_as_it_was() -> None:
    results = (PartitionResult("t", 0), PartitionResult("t", 1, ErrorCode.OFFSET_METADATA_TOO_LARGE))
    for reply in (CommitReply(partitions=results), CommitReply(ErrorCode.UNKNOWN_MEMBER_ID, "why")):
        assert unpack_commit_answer(pack_commit_answer(reply, 8, 2, "http://owner")) == (reply, 8, 2, "http://owner")


COMMIT: list[Any] = ["default", "g", 3, "m", None, "", [["t", 0, 7, None, "", None]]]
ANSWER: list[Any] = [8, 2, "", "NONE", "", [["t", 0, "NONE"]]]


@pytest.mark.parametrize("wrong", [b"", b"{}", b"[]", b"[" * 100_000, b"\xff"])
def test_bytes_that_no_worker_sends_are_refused(wrong: bytes) -> None:
    for unpack in (unpack_commit, unpack_commit_answer):
        with pytest.raises(MalformedEnvelope):
            unpack(wrong)


@pytest.mark.parametrize(
    ("at", "value"), [(0, 1), (1, "\ud800"), (2, "3"), (3, None), (4, 1), (5, None), (6, {}), (6, [1])]
)
def test_a_field_of_another_type_is_refused(at: int, value: Any) -> None:
    with pytest.raises(MalformedEnvelope, match="not a commit"):
        unpack_commit(json.dumps([*COMMIT[:at], value, *COMMIT[at + 1 :]]).encode())


@pytest.mark.parametrize(
    ("at", "value"), [(0, "8"), (1, None), (2, 0), (3, "no code"), (5, [["t", 0]]), (5, [["t", 0, "no code"]])]
)
def test_a_field_of_an_answer_of_another_type_is_refused(at: int, value: Any) -> None:
    with pytest.raises(MalformedEnvelope, match="not a reply to a commit"):
        unpack_commit_answer(json.dumps([*ANSWER[:at], value, *ANSWER[at + 1 :]]).encode())
