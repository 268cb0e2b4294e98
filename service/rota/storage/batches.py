"""What every store demands of the batches it is given to append, before it looks at its own state."""

from __future__ import annotations

from collections.abc import Sequence

from rota.replica.ports import ShardBatch


def check_batches(batches: Sequence[ShardBatch]) -> None:
    """A shard appears once, and its lines count up from `first_seq`; anything else is a bug of the caller."""
    shard_ids = [batch.shard_id for batch in batches]
    assert len(set(shard_ids)) == len(shard_ids), f"a shard has two batches in one append: {shard_ids}"
    for batch in batches:
        for seq, event in enumerate(batch.events, start=batch.first_seq):
            assert event.seq == seq, f"shard {batch.shard_id}: line {event.seq} stands where {seq} must stand"


def last_seq(batch: ShardBatch) -> int:
    """Where the shard's journal ends once this batch is in."""
    return batch.first_seq - 1 + len(batch.events)
