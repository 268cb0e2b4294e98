"""Users' own transactions that commit progress through the fence in the database, past the owner of the shard."""

from __future__ import annotations

from rota.core.group.rows import OffsetRow
from rota.protocol.errors import ErrorCode
from rota.protocol.ids import shard_of
from rota.protocol.messages import DeleteOffsets, FetchOffsets, Request, TopicPartitions
from tests.simulation.beside import Beside
from tests.simulation.history import GroupKey, UserCommit

TOPIC = "beside"
PARTITIONS = (0, 1)
LONGEST_MS = 1_500
"""How long a transaction takes at most, from reading the generation to its commit."""


def expiry_ms(offset: int, committed_at_ms: int) -> int | None:
    """When an offset that was committed at this time expires: each third commit names a retention."""
    return committed_at_ms + 20_000 if offset % 3 == 0 else None


class UserTransactions(Beside):
    """A transaction names the generation that its member is in when it begins; the fence is checked when it commits."""

    name = "user_transaction"
    every_ms = 200

    def act(self) -> None:
        whim = self.rng.random()
        group = self.rng.choice(self.world.groups)
        members = [member for member in self.world.nemesis.members() if member.group == group]
        known = [member for member in members if member.core.member_id and member.core.generation_id >= 0]
        if whim < 0.2:
            self._ask(FetchOffsets(*group, (TopicPartitions(TOPIC, PARTITIONS),)))
        elif whim < 0.22:
            self._ask(DeleteOffsets(*group, (TopicPartitions(TOPIC, PARTITIONS),)))
        elif known:
            member = self.rng.choice(known)
            takes_ms = int(self.rng.random() * (LONGEST_MS if self.rng.random() < 0.3 else 20))
            self.world.scheduler.after(
                takes_ms, None, self._commit, group, member.core.generation_id, member.core.member_id
            )

    def _ask(self, request: Request) -> None:
        self.world.nemesis.ask(request)

    def _commit(self, group: GroupKey, generation_id: int, member_id: str) -> None:
        """The transaction ends. The database decides, as of now."""
        tables, shard_id = self.world.store.tables, shard_of(*group, self.world.profile.shards)
        error = tables.check_fence(shard_id, *group, generation_id, member_id)
        if error is not ErrorCode.NONE:
            self.world.sometimes(f"a user's transaction is rejected: {error}")
            return
        partition, offset = self.rng.choice(PARTITIONS), self.world.next_call()
        now_ms = self.world.store.clock_ms()
        row = OffsetRow(*group, TOPIC, partition, offset, None, f"user/{offset}", now_ms, expiry_ms(offset, now_ms))
        tables.commit_beside(shard_id, row, member_id)
        journal, now_ms = self.world.history.journal[shard_id], self.world.scheduler.now_ms
        self.world.history.user_commits.append(
            UserCommit(group, shard_id, len(journal), generation_id, member_id, TOPIC, partition, offset, now_ms)
        )
        self.world.sometimes("a user's transaction commits progress")
