"""A shard in the hands of a simulated replica: the real core, and what waits for the store."""

from __future__ import annotations

from typing import NamedTuple

from rota.group.records import Entry
from rota.group.result import Timer
from rota.group.rows import ShardImage
from rota.group.shard import Shard
from rota.protocol.messages import Reply
from rota.testing.facts import rows_of
from rota.testing.replicas import ServedShard
from rota.testing.store import Batch


class Outcome(NamedTuple):
    """What is let go once the journal has `revision`."""

    revision: int
    replies: list[tuple[int, Reply]]
    timers: list[Timer]


class OwnedShard:
    """A shard that this replica owns, by its own reckoning."""

    __slots__ = ("decided_ms", "dropped", "epoch", "lease_until_ms", "outcomes", "revision", "sent", "shard", "unsent")

    def __init__(self, shard: Shard, epoch: int, last_seq: int, lease_until_ms: int) -> None:
        self.shard = shard
        self.epoch = epoch
        self.revision = last_seq
        """The last entry that was decided, durable or not."""
        self.lease_until_ms = lease_until_ms
        self.unsent: list[Entry] = []
        self.decided_ms: list[int] = []
        self.outcomes: list[Outcome] = []
        """Waits for the append that is sent next."""
        self.sent: list[Outcome] | None = None
        """Waits for the append that is under way; None while none is."""
        self.dropped = False

    def cut(self) -> Batch:
        """Everything decided so far, as one batch."""
        batch = Batch(
            self.shard.shard_id,
            self.epoch,
            self.revision - len(self.unsent) + 1,
            tuple(self.unsent),
            tuple(self.decided_ms),
            self.shard.rows(),
        )
        self.unsent.clear()
        self.decided_ms.clear()
        self.sent, self.outcomes = self.outcomes, []
        return batch


def image_differences(owned: ServedShard, image: ShardImage) -> list[str]:
    """Where the store's rows are not those of the live shard."""
    live, stored = rows_of(owned.shard.image()), rows_of(image)
    return [
        f"{table} {key}: live {live[table].get(key)}, stored {stored[table].get(key)}"
        for table in live
        for key in {**live[table], **stored[table]}
        if live[table].get(key) != stored[table].get(key)
    ]
