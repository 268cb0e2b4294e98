"""The simulated database as the production runtime meets it: `ShardStore` with delays, refusals and lost answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rota.group.journal import decode_entry
from rota.group.records import Entry
from rota.group.rows import ShardImage, SideCommit
from rota.replica.owned_shard import Batch
from rota.replica.ports import (
    Floor,
    JournalEvent,
    Renewal,
    Replica,
    ShardBatch,
    ShardClaim,
    ShardOwner,
    StoreUnavailable,
)
from rota.testing.store import SimulatedStore

if TYPE_CHECKING:
    from rota.testing.runtimes.replica import RuntimeReplica
    from rota.testing.runtimes.world import RuntimeWorld

Found = TypeVar("Found")

PROMPT_MS = 100
WELL_AGAIN_MS = 1_000
READ_TIMEOUT_MS = 30_000
"""The default of `SqlStore`."""


class RuntimeStore(SimulatedStore):
    """One database for the replicas of a world."""

    def append_batches(
        self, owner_id: str, clock_offset_ms: int, batches: Sequence[ShardBatch], gave_up: Callable[[], bool]
    ) -> list[int]:
        """The ids of the shards that were refused. `gave_up`: does the sender still wait for the answer?"""
        refused = []
        for batch in batches:
            if self.tables.append([batch]):
                refused.append(batch.shard_id)
                self._history.sometimes["stale append refused"] += 1
            else:
                self._note_landed(owner_id, clock_offset_ms, _decoded(batch))
                self._history.sometimes["unknown append landed"] += gave_up()
        return refused


def _decoded(batch: ShardBatch) -> Batch:
    """The batch with its entries."""
    return Batch(
        batch.shard_id,
        batch.epoch,
        batch.first_seq,
        tuple(map(_entry, batch.events)),
        batch.rows,
        batch.replica_id or "",
    )


def _entry(event: JournalEvent) -> Entry:
    return decode_entry(
        {
            "namespace": event.namespace,
            "group_id": event.group_id,
            "generation_id": event.generation_id,
            "at_ms": event.at_ms,
            "kind": event.kind,
            "reason": event.reason,
            "payload": event.payload,
        }
    )


class StoreOfReplica:
    """`ShardStore` for one replica: each method is one statement on its way to the database and back."""

    def __init__(self, world: RuntimeWorld, replica: RuntimeReplica) -> None:
        self._world = world
        self._replica = replica
        self._store = world.store
        self._tables = world.store.tables
        self._write_timeout_ms = min(3_000, world.profile.lease_ms * 6 // 10)
        self.has_side_door = world.has_side_door
        self._under_way: dict[asyncio.Future[Any], int] = {}
        """Since when each statement waits for its answer."""
        self._slow_ms = -WELL_AGAIN_MS

    def is_well(self) -> bool:
        """Has the store answered every statement of this replica at once, for a while?"""
        now_ms = self._world.scheduler.now_ms
        is_prompt = all(now_ms - began_ms < PROMPT_MS for began_ms in self._under_way.values())
        return is_prompt and now_ms - self._slow_ms >= WELL_AGAIN_MS

    async def open(self, shard_count: int) -> None:
        await self._write(lambda: self._tables.open(shard_count))

    async def close(self) -> None:
        """There is no connection to close."""

    async def ping(self) -> None:
        await self._read(lambda: None)

    async def register(self, replica: Replica, ttl_ms: int) -> list[Replica]:
        return await self._write(lambda: self._tables.register(replica, ttl_ms))

    async def deregister(self, replica_id: str) -> None:
        await self._write(lambda: self._tables.deregister(replica_id))

    async def claim(
        self,
        shard_ids: Sequence[int],
        replica_id: str,
        address: str,
        lease_ms: int,
        *,
        steal: bool = False,
        known_epochs: Mapping[int, int] | None = None,
    ) -> list[ShardClaim]:
        def statement() -> list[ShardClaim]:
            claims = self._tables.claim(
                shard_ids, replica_id, address, lease_ms, steal=steal, known_epochs=known_epochs
            )
            self._world.note_claims(claims, replica_id)
            return claims

        return await self._lease(statement)

    async def raise_floors(self, floors: Mapping[int, Floor]) -> None:
        await self._write(lambda: self._tables.raise_floors(floors))

    async def renew(self, claims: Sequence[ShardClaim], replica_id: str, lease_ms: int) -> list[Renewal]:
        return await self._lease(lambda: self._tables.renew(claims, replica_id, lease_ms))

    async def confirm(self, claims: Sequence[ShardClaim], replica_id: str) -> list[int]:
        return await self._write(lambda: self._tables.confirm(claims, replica_id))

    async def release(self, claims: Sequence[ShardClaim], replica_id: str) -> None:
        await self._write(lambda: self._tables.release(claims, replica_id))

    async def owners(self) -> list[ShardOwner]:
        sent_ms = self._world.scheduler.now_ms
        owners = await self._write(self._tables.owners)
        # The caller compares them with its memory, before any other callback runs.
        self._replica.loop.call_soon(self._world.note_owners_read, self._replica, sent_ms)
        return owners

    async def load(self, shard_ids: Sequence[int]) -> list[ShardImage]:
        return await self._read(lambda: [self._tables.load(shard_id) for shard_id in shard_ids])

    async def append(self, batches: Sequence[ShardBatch]) -> list[int]:
        replica, gave_up = self._replica, False
        if len(batches) > 1:
            self._world.sometimes("several shards in one commit")

        def statement() -> list[int]:
            return self._store.append_batches(replica.owner_id, replica.clock_offset_ms, batches, lambda: gave_up)

        try:
            return await self._write(statement)
        except StoreUnavailable:
            gave_up = True
            self._note_unknown(batches)
            raise

    async def side_commits(self, shard_ids: Sequence[int]) -> list[SideCommit]:
        if not self.has_side_door or not shard_ids:
            return []
        found = await self._write(lambda: self._tables.side_commits(shard_ids))
        if found:
            self._world.sometimes("a shard takes in offsets that were committed beside it")
        return found

    async def read_events(
        self, shard_id: int, after_seq: int, limit: int, *, namespace: str | None = None, group_id: str | None = None
    ) -> list[JournalEvent]:
        return await self._read(
            lambda: self._tables.read_events(shard_id, after_seq, limit, namespace=namespace, group_id=group_id)
        )

    # --- the way of a statement ------------------------------------------------------------------

    def _note_unknown(self, batches: Sequence[ShardBatch]) -> None:
        now_ms = self._world.scheduler.now_ms
        self._world.sometimes("unknown outcome of an append")
        self._world.history.unknown_appends += [(batch.shard_id, batch.epoch, now_ms) for batch in batches]

    async def _write(self, statement: Callable[[], Found]) -> Found:
        """A statement of a lease or a commit: `SqlStore` gives it up well before the lease is over."""
        return await self._run(statement, self._write_timeout_ms)

    async def _lease(self, statement: Callable[[], Found]) -> Found:
        began_ms = self._world.scheduler.now_ms
        answer = await self._write(statement)
        if began_ms < self._world.late_leases_until_ms:
            await asyncio.sleep(self._world.rng.uniform(0.15, 0.5))
        self._world.nemesis.on_lease(self._replica, self._world.scheduler.now_ms - began_ms)
        return answer

    async def _read(self, statement: Callable[[], Found]) -> Found:
        return await self._run(statement, READ_TIMEOUT_MS)

    async def _run(self, statement: Callable[[], Found], timeout_ms: int) -> Found:
        replica = self._replica
        outcome = replica.loop.create_future()

        is_deaf = self._world.scheduler.now_ms < replica.deaf_to_store_until_ms

        def done(answer: tuple[Found] | None) -> None:
            if is_deaf and answer is not None:
                self._world.scheduler.after(timeout_ms, replica, done, None)
            elif not outcome.done():
                outcome.set_result(answer)

        runs_in, is_cut_off = replica if self._world.steals else None, replica.is_cut_off_from_store()
        self._store.submit(replica, lambda: (statement(),), timeout_ms, done, cut_off=is_cut_off, runs_in=runs_in)
        began_ms = self._under_way[outcome] = self._world.scheduler.now_ms
        try:
            answer: tuple[Found] | None = await outcome
        finally:
            del self._under_way[outcome]
            if self._world.scheduler.now_ms - began_ms >= PROMPT_MS:
                self._slow_ms = self._world.scheduler.now_ms
        if answer is None:
            raise StoreUnavailable(f"no answer within {timeout_ms} ms")
        return answer[0]
