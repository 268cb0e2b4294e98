"""The verdict on a cluster can be guilty: facts that are lost, repeated, or taken from a live member are found."""

from __future__ import annotations

import pytest

from rota.core.group import records as r
from rota.core.group.records import encode_entry
from rota.core.group.rows import MemberImage
from rota.core.replica.ports import JournalEvent
from rota.protocol.causes import Cause
from rota.protocol.messages import CommitOffsets, CommitReply, OffsetToCommit, Protocol
from rota.protocol.wire.replies import Received
from tests.faults.load import Crowd
from tests.faults.record import Record
from tests.faults.verdict import judged

GROUP = "g"
SESSION_MS = 6_000


def a_journal(*records: r.Record, at_ms: int) -> list[JournalEvent]:
    """A shard's lines, all of one epoch but for those after a further acquisition."""
    lines, epoch = [], 0
    for seq, record in enumerate(records, start=1):
        of_shard = isinstance(record, r.ShardAcquired)
        epoch = record.epoch if isinstance(record, r.ShardAcquired) else epoch
        name = ("", "") if of_shard else ("default", GROUP)
        lines.append(JournalEvent(seq=seq, epoch=epoch, **encode_entry(r.Entry(*name, 1, at_ms, record))))
    return lines


def a_group_of_one(member_id: str = "m", client_id: str = "c") -> list[r.Record]:
    image = MemberImage(member_id, None, client_id, "", SESSION_MS, 6_000, (Protocol("even", b""),))
    return [
        r.ShardAcquired("r1", 1, ""),
        r.MemberJoined(image, "worker", "new"),
        r.GenerationCompleted(1, "worker", "even", member_id, (member_id,), 0, "new", member_id),
    ]


def found(record: Record, journal: list[JournalEvent]) -> list[str]:
    return judged(record, Crowd(), {0: journal}, asked_ms=record.clock.now_ms() + 1, lease_ms=1_000).violations


@pytest.fixture
def record() -> Record:
    return Record(shard_count=1)


def test_a_run_in_which_nothing_is_wrong_is_clean(record: Record) -> None:
    assert found(record, a_journal(*a_group_of_one(), at_ms=record.clock.now_ms())) == []


def test_an_acknowledged_commit_missing_in_the_journal_is_lost(record: Record) -> None:
    commit = record.marked("c", CommitOffsets("default", GROUP, -1, (OffsetToCommit("t", 0, 7),)))
    record.answered(record.sent("c", commit), Received(CommitReply(), revision=3, epoch=1))

    assert any(each.startswith("S9 ") for each in found(record, a_journal(*a_group_of_one(), at_ms=1)))


def test_a_generation_that_comes_twice_is_repeated(record: Record) -> None:
    twice = [*a_group_of_one(), r.RebalanceStarted("again", "m", "Stable"), a_group_of_one()[-1]]

    assert any(each.startswith("S1 ") for each in found(record, a_journal(*twice, at_ms=1)))


def test_a_member_whose_client_has_not_ended_was_evicted(record: Record) -> None:
    expired = r.MemberExpired("m", None, "no heartbeat for 6000 ms", Cause.MEMBER_EXPIRED)
    journal = a_journal(*a_group_of_one(), expired, at_ms=record.clock.now_ms())

    assert [each.split(" ")[0] for each in found(record, journal)] == ["EVICTED"]
    record.ended_ms["c"] = journal[0].at_ms - 1
    assert found(record, journal) == []
