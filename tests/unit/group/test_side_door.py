"""What users' own transactions commit in the store, past the shard: how the shard takes it in."""

from __future__ import annotations

from rota.core.group.rows import OffsetRow, SideCommit
from rota.core.group.shard import Shard
from rota.protocol import messages as m
from tests.unit.group.driver import LIMITS, Core


def a_side_commit(offset: int | None, *, side_id: int = 1, group_id: str = "g", at_ms: int = 1_000) -> SideCommit:
    row = None if offset is None else OffsetRow("default", group_id, "t", 0, offset, None, "", at_ms)
    return SideCommit(0, side_id, "default", group_id, "t", 0, "m", row)


def a_shard_that_committed(offset: int) -> Shard:
    shard = Shard(0, LIMITS)
    commit(shard, offset)
    shard.rows()
    return shard


def commit(shard: Shard, offset: int, now_ms: int = 1_000) -> None:
    shard.handle(m.CommitOffsets("default", "g", -1, (m.OffsetToCommit("t", 0, offset),)), 1, now_ms)


def known(shard: Shard) -> int:
    return shard.groups[("default", "g")].offsets[("t", 0)].offset


def test_the_row_in_the_store_is_adopted_and_not_written_again() -> None:
    shard = a_shard_that_committed(1)

    result = shard.take_in([a_side_commit(7, at_ms=900)], 2_000)
    changes = shard.rows()

    assert known(shard) == 7
    assert [entry.record.kind for entry in result.records] == ["offsets_committed"]
    assert (changes.offsets, changes.side_commits_taken) == ([], [1])


def test_its_record_folds_to_the_row_with_the_time_of_the_store() -> None:
    shard, folded = a_shard_that_committed(1), a_shard_that_committed(1)

    for entry in shard.take_in([a_side_commit(7, at_ms=900)], 2_000).records:
        folded.replay(entry)

    assert folded.groups[("default", "g")].offsets == shard.groups[("default", "g")].offsets
    assert shard.groups[("default", "g")].offsets[("t", 0)].committed_at_ms == 900


def test_what_is_about_to_be_written_comes_after_it() -> None:
    shard = a_shard_that_committed(1)
    commit(shard, 9)

    result = shard.take_in([a_side_commit(7)], 2_000)
    changes = shard.rows()

    assert known(shard) == 9
    assert not result.records
    assert [row.offset for row in changes.offsets] == [9]
    assert changes.side_commits_taken == [1]


def test_an_offset_that_was_deleted_after_it_stays_deleted() -> None:
    shard = a_shard_that_committed(1)
    shard.handle(m.DeleteOffsets("default", "g", (m.TopicPartitions("t", (0,)),)), 2, 1_500)
    shard.rows()

    assert not shard.take_in([a_side_commit(None)], 2_000).records


def test_a_group_that_is_gone_takes_the_row_with_it() -> None:
    shard = Shard(0, LIMITS)

    shard.take_in([a_side_commit(7)], 2_000)
    changes = shard.rows()

    assert changes.offsets_deleted == [("default", "g", "t", 0)]
    assert changes.side_commits_taken == [1]


def test_a_shard_loads_the_offset_of_a_deleted_group() -> None:
    core = Core()
    orphan = OffsetRow("default", "gone", "t", 0, 7, None, "", 1_000)
    image = core.shard.image()

    shard, _ = Shard.load(type(image)(0, offsets=(orphan,)), LIMITS, 1_000)

    assert not shard.groups


def test_a_group_that_has_just_become_empty_is_not_swept_away() -> None:
    """Its members may have committed progress of which the shard does not know yet."""
    shard = a_shard_that_committed(1)
    later_ms = 1_000 + LIMITS.offsets_retention_ms + 1

    shard.sweep(later_ms, empty_since_ms=1_000)
    kept = ("default", "g") in shard.groups
    shard.sweep(later_ms, empty_since_ms=1_001)

    assert kept
    assert ("default", "g") not in shard.groups
