"""The store as a simulated replica meets it: slow, cut off, and with statements that land after all callers gave up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from rota.core.group.records import Entry, decode_entry
from rota.core.group.rows import ShardImage, SideCommit
from rota.core.group.shard import ShardState
from rota.core.replica.ports import (
    Floor,
    JournalEvent,
    Renewal,
    Replica,
    ShardBatch,
    ShardClaim,
    ShardOwner,
    StoreUnavailable,
)
from rota.protocol.errors import check_in_journal
from rota.testing.memory import MemoryTables
from rota.testing.scheduler import Process, Scheduler
from tests.simulation.facts import OffsetName, facts_of, without_offsets
from tests.simulation.history import History, Landed
from tests.simulation.profiles import Profile
from tests.simulation.situations import note_landing

if TYPE_CHECKING:
    from tests.simulation.replica import SimulatedReplica
    from tests.simulation.world import World

Found = TypeVar("Found")

PROMPT_MS = 100
WELL_AGAIN_MS = 1_000
READ_TIMEOUT_MS = 30_000
"""The default of `SqlStore`."""

STORE_CLOCK_MS = 3_600_000
"""The database's clock at first: those of the replicas, which date the lines, are up to an hour off."""


class Tables(MemoryTables):
    """The store's twin, less the way of each journal line through JSON: the simulator keeps entries as they are."""

    def append(self, batches: Sequence[ShardBatch]) -> list[int]:
        """Append by the twin's own rule: the epoch is the store's, and the journal has no gap."""
        refused = []
        for batch in batches:
            shard = self._shards.get(batch.shard_id)
            if shard is None or not shard.accepts(batch):
                refused.append(batch.shard_id)
                continue
            shard.events.extend(batch.events)
            shard.apply(batch.rows)
        return refused

    def read_events(
        self, shard_id: int, after_seq: int, limit: int, *, namespace: str | None = None, group_id: str | None = None
    ) -> list[JournalEvent]:
        """As the twin does, without the way through JSON."""
        shard = self._shards.get(shard_id)
        first_seq, last_seq = (shard.first_seq, shard.last_seq) if shard is not None else (1, 0)
        check_in_journal(after_seq, first_seq, last_seq, self.incarnation)
        events = shard.events[shard.position_of(after_seq) :] if shard is not None else []
        wanted = (e for e in events if namespace in (None, e.namespace) and group_id in (None, e.group_id))
        return list(islice(wanted, limit))

    def owner_of(self, shard_id: int) -> str:
        """The replica of the last claim that landed."""
        return self._shards[shard_id].replica_id

    def epoch_of(self, shard_id: int) -> int:
        return self._shards[shard_id].epoch

    def lease_left_ms(self, shard_id: int) -> int:
        """By the store's clock; 0 or less where the lease is over."""
        return self._shards[shard_id].lease_until_ms - self._clock_ms()


class SimulatedStore:
    """One database for all replicas. It keeps W, and a shard folded from W to compare the live ones with (S14)."""

    def __init__(self, scheduler: Scheduler, rng: Random, profile: Profile, history: History) -> None:
        self._scheduler = scheduler
        self._rng = rng
        self._profile = profile
        self._history = history
        self.clock_ahead_ms = STORE_CLOCK_MS
        """How far the database's clock is ahead of the world's: it steps."""
        self.tables = self.new_tables()
        self.tables.open(profile.shards)
        self.folded = {shard_id: ShardState(shard_id) for shard_id in range(profile.shards)}
        self._loaded_facts: dict[tuple[int, int], tuple[dict[str, Any], frozenset[OffsetName]]] = {}
        """What an owner found when it loaded the shard, by shard and epoch, until its first line lands."""
        self.faulty = True
        self.usual_ms = 3
        """How long a statement is on its way at most, while all is well."""
        self.slow_until_ms = 0
        self.down_until_ms = 0
        history.journal = {shard_id: [] for shard_id in range(profile.shards)}

    def new_tables(self) -> Tables:
        return Tables(self.clock_ms)

    def clock_ms(self) -> int:
        """The time by the database's clock."""
        return self._scheduler.now_ms + self.clock_ahead_ms

    # --- the way of a statement ------------------------------------------------------------------

    def submit(
        self,
        client: Process,
        statement: Callable[[], Found],
        timeout_ms: int,
        done: Callable[[Found | None], None],
        *,
        cut_off: bool = False,
        runs_in: Process | None = None,
    ) -> None:
        """Run `statement` some time soon; `done` gets its answer, and None after `timeout_ms`: the first one counts.

        A statement whose answer did not come in time has run, will run, or never runs: the caller cannot know. That of
        an embedded store `runs_in` its client's process, and ends with it.
        """
        rng, faulty, profile = self._rng, self.faulty, self._profile
        self._scheduler.after(timeout_ms, client, done, None)
        there_ms = 1 + int(rng.random() * self.usual_ms)
        if faulty and self._scheduler.now_ms < self.slow_until_ms:
            there_ms += int(rng.random() * profile.lease_ms)
        if faulty and rng.random() < profile.stalled_statements:
            there_ms += int(rng.random() * 3 * profile.lease_ms)
        broken = cut_off or (faulty and rng.random() < profile.lost_statements)
        if broken and rng.random() < 0.5:
            return
        there_ms = max(there_ms, self.down_until_ms - self._scheduler.now_ms)

        def run() -> None:
            answer = statement()
            back_ms = 1 + int(rng.random() * 3)
            if faulty and rng.random() < profile.late_answers:
                back_ms += int(rng.random() * profile.lease_ms)
            if not broken:
                self._scheduler.after(back_ms, client, done, answer)

        self._scheduler.after(there_ms, runs_in, run)

    # --- for the checks ----------------------------------------------------------------------------

    def on_the_way(self, shard_id: int) -> frozenset[OffsetName]:
        """Progress that users' own transactions have committed, and no owner has taken in."""
        commits = self.tables.side_commits([shard_id])
        return frozenset((each.namespace, each.group_id, each.topic, each.partition) for each in commits)

    def note_loaded(self, shard: ShardState, epoch: int) -> None:
        names = self.on_the_way(shard.shard_id)
        self._loaded_facts[(shard.shard_id, epoch)] = (without_offsets(facts_of(shard), names), names)

    # --- statements ------------------------------------------------------------------------------

    def append(
        self, owner_id: str, clock_offset_ms: int, batches: Sequence[ShardBatch], gave_up: Callable[[], bool]
    ) -> list[int]:
        """The ids of the shards that were refused. `gave_up`: has the sender stopped waiting for the answer?

        `clock_offset_ms` is how far the replica's wall clock is off.
        """
        refused = []
        for batch in batches:
            if self.tables.append([batch]):
                refused.append(batch.shard_id)
                self._history.sometimes["stale append refused"] += 1
            else:
                self._note_landed(owner_id, clock_offset_ms, batch)
                self._history.sometimes["unknown append landed"] += gave_up()
        return refused

    def _note_landed(self, replica_id: str, clock_offset_ms: int, batch: ShardBatch) -> None:
        """Into W, and into the shard folded from W."""
        now_ms = self._scheduler.now_ms
        if self.tables.lease_left_ms(batch.shard_id) <= 0:
            self._history.sometimes["append landed after the lease was over"] += 1
        journal = self._history.journal[batch.shard_id]
        folded = self.folded[batch.shard_id]
        for seq, entry in enumerate(map(entry_of, batch.events), batch.first_seq):
            journal.append(Landed(seq, batch.epoch, entry, entry.at_ms - clock_offset_ms, now_ms, replica_id))
            note_landing(self._history, folded, entry)
            folded.replay(entry)
            if entry.record.kind == "shard_acquired":
                self._compare_with_loaded(batch.shard_id, batch.epoch)

    def _compare_with_loaded(self, shard_id: int, epoch: int) -> None:
        """S14: load(rows) == fold(journal), then forget unsettled state."""
        if (shard_id, epoch) not in self._loaded_facts:
            return
        loaded, names = self._loaded_facts.pop((shard_id, epoch))
        folded = without_offsets(facts_of(self.folded[shard_id]), names)
        if loaded != folded:
            self._history.violations.append(f"S14 shard {shard_id}: loaded {loaded}, folded {folded}")


def entry_of(event: JournalEvent) -> Entry:
    """The journal's line as the core wrote it."""
    names = ("namespace", "group_id", "generation_id", "at_ms", "kind", "reason", "payload")
    return decode_entry({name: getattr(event, name) for name in names})


class StoreOfReplica:
    """`ShardStore` for one replica: each method is one statement on its way to the database and back."""

    def __init__(self, world: World, replica: SimulatedReplica) -> None:
        self._world = world
        self._replica = replica
        self._store = world.store
        self._tables = world.store.tables
        self._write_timeout_ms = min(3_000, world.profile.lease_ms * 6 // 10)
        self.has_side_door = world.parts.side_door
        self._under_way: dict[asyncio.Future[Any], int] = {}
        """Since when each statement waits for its answer."""
        self._slow_ms = -WELL_AGAIN_MS
        self.is_appending = False

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
        kept = await self._lease(lambda: self._tables.renew(claims, replica_id, lease_ms))
        owned = self._replica.owned
        if any(claim.shard_id not in owned or owned[claim.shard_id].claim is not claim for claim in claims):
            self._world.sometimes("renewal answered after the shard was dropped")
        return kept

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
            return self._store.append(replica.owner_id, replica.clock_offset_ms, batches, lambda: gave_up)

        self.is_appending = True
        try:
            return await self._write(statement)
        except StoreUnavailable:
            gave_up = True
            self._note_unknown(batches)
            raise
        finally:
            self.is_appending = False

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
            if not (outcome.done() or (is_deaf and answer is not None)):
                outcome.set_result(answer)

        runs_in, is_cut_off = replica if self._world.parts.steals else None, replica.is_cut_off_from_store()
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
