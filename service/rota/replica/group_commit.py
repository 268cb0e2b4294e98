"""Group commit: what all shards decided while one transaction was under way goes out together in the next.

One transaction at a time. It may be refused for a shard, because another replica owns that by now or the store went
back to an earlier state, or its outcome may stay unknown: then none of its shards may answer any more. Only a new
claim, with a new epoch, finds out what landed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from rota.replica.owned_shard import Batch, Now, OwnedShard, Ready

Waiter = TypeVar("Waiter")


@dataclass(slots=True)
class Append:
    """Write these batches in one transaction, then call `landed` or `outcome_unknown`."""

    batches: Mapping[OwnedShard, Batch]


@dataclass(slots=True)
class ReadSideCommits:
    """Read what users' own transactions have committed for these shards, take it in, then call `side_commits_read`.

    BETWEEN two appends: `Shard.take_in` counts on none being under way.
    """

    shards: Collection[OwnedShard]


@dataclass(slots=True)
class Landed:
    """What an append has come to."""

    committed: Mapping[OwnedShard, Ready]
    """To be carried out: the batches are durable."""
    lost: Mapping[OwnedShard, str]
    """Shards to be given up, and why."""


Round: TypeAlias = Append | ReadSideCommits


class GroupCommit(Generic[Waiter]):
    """Which shards are waiting for the store, and what goes there next."""

    def __init__(self) -> None:
        self._wanting: dict[OwnedShard, None] = {}
        self._asking: list[tuple[OwnedShard, Waiter]] = []
        self._to_read: list[tuple[OwnedShard, Waiter]] = []
        """Requests from before the append in flight."""
        self._sent: Mapping[OwnedShard, Batch] | None = None

    @property
    def is_idle(self) -> bool:
        """Nothing waits, and nothing is under way."""
        return not (self._wanting or self._asking or self._to_read) and self._sent is None

    def want(self, owned: OwnedShard) -> bool:
        """The shard has something to write; False if it was waiting for the store already."""
        if owned in self._wanting:
            return False
        self._wanting[owned] = None
        return True

    def ask(self, owned: OwnedShard, waiter: Waiter) -> None:
        """Have the shard's side commits read, after what it has decided is durable; `waiter` is returned then."""
        self._asking.append((owned, waiter))

    def next(self) -> Round | None:
        """What to do now; None while something is under way, or nothing waits."""
        if self._sent is not None:
            return None
        if self._to_read:
            return ReadSideCommits({owned: None for owned, _ in self._to_read if not owned.is_dropped})
        wanting, self._wanting = self._wanting, {}
        self._to_read, self._asking = self._asking, []
        batches = {owned: owned.take_batch() for owned in wanting if owned.has_entries and not owned.is_dropped}
        if batches:
            self._sent = batches
            return Append(batches)
        return self.next() if self._to_read else None

    def landed(self, refused: Collection[int], now: Now) -> Landed:
        """The append is durable, but for these shards."""
        sent, self._sent = self._sent or {}, None
        committed: dict[OwnedShard, Ready] = {}
        lost: dict[OwnedShard, str] = {}
        for owned, batch in sent.items():
            if batch.shard_id in refused:
                owned.was_refused = True
                lost[owned] = "the shard belongs to another replica now, or the store went back"
            else:
                committed[owned] = owned.committed(batch.last_seq, now)
        return Landed(committed, lost)

    def outcome_unknown(self, why: str) -> Landed:
        """The append may have landed, may yet land, or never will."""
        sent, self._sent = self._sent or {}, None
        return Landed({}, dict.fromkeys(sent, f"a write has an unknown outcome: {why}"))

    def side_commits_read(self) -> list[Waiter]:
        """They are taken in, or the store does not answer. Returns the waiters."""
        read, self._to_read = self._to_read, []
        return [waiter for _, waiter in read]

    def end(self) -> list[Waiter]:
        """Nothing more will be read. Returns the waiters."""
        waiters = [waiter for _, waiter in [*self._to_read, *self._asking]]
        self._to_read, self._asking = [], []
        return waiters
