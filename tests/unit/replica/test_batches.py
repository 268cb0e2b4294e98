"""What a store may expect of the batches that it gets."""

from __future__ import annotations

import pytest

from rota.core.group.rows import RowChanges
from rota.core.replica.ports import JournalEvent, ShardBatch, check_batches


def a_batch(*seqs: int, shard_id: int = 0, first_seq: int = 4) -> ShardBatch:
    events = tuple(JournalEvent(seq, 0, "default", "g", 1, "k", "", {}) for seq in seqs)
    return ShardBatch(shard_id, 1, first_seq, events, RowChanges())


def test_a_batch_for_each_shard_is_right() -> None:
    check_batches([a_batch(4, 5), a_batch(7, shard_id=1, first_seq=7), a_batch(shard_id=2)])


def test_a_shard_with_two_batches_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="two batches"):
        check_batches([a_batch(4), a_batch(5, first_seq=5)])


@pytest.mark.parametrize("seqs", [(4, 6), (5,), (3, 4)])
def test_lines_with_a_gap_are_a_bug(seqs: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError, match="is not line"):
        check_batches([a_batch(*seqs)])


@pytest.mark.parametrize(("seqs", "last"), [((), 3), ((4,), 4), ((4, 5, 6), 6)])
def test_a_batch_ends_with_its_last_line(seqs: tuple[int, ...], last: int) -> None:
    assert a_batch(*seqs).last_seq == last
