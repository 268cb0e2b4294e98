"""The store as a simulated replica meets it: slow, cut off, and with statements that land after all callers gave up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from random import Random
from typing import Any, TypeVar

from rota.group.records import Entry
from rota.group.shard_state import ShardState
from rota.protocol.errors import check_in_journal
from rota.replica.owned_shard import Batch
from rota.replica.ports import JournalEvent, ShardBatch
from rota.testing.facts import OffsetName, facts_of, without_offsets
from rota.testing.history import History, Landed
from rota.testing.memory import MemoryTables
from rota.testing.profiles import Profile
from rota.testing.scheduler import Process, Scheduler
from rota.testing.situations import note_landing

Answer = TypeVar("Answer")

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
        statement: Callable[[], Answer],
        timeout_ms: int,
        done: Callable[[Answer | None], None],
        *,
        cut_off: bool = False,
        runs_in: Process | None = None,
    ) -> None:
        """Run `statement` some time soon; `done` gets its answer, or None after `timeout_ms`.

        A statement whose answer did not come in time has run, will run, or never runs: the caller cannot know. That of
        an embedded store `runs_in` its client's process, and ends with it.
        """
        rng, faulty, profile = self._rng, self.faulty, self._profile
        settled = _Once(done)
        self._scheduler.after(timeout_ms, client, settled.give_up)
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
                self._scheduler.after(back_ms, client, settled.answer, answer)

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
        self, replica_id: str, clock_offset_ms: int, batches: Sequence[Batch], gave_up: Callable[[], bool]
    ) -> list[int]:
        """The ids of the shards that were refused. `gave_up`: does the sender still wait for the answer?

        `clock_offset_ms` is how far the replica's wall clock is off.
        """
        refused = []
        for batch in batches:
            if self._append(replica_id, clock_offset_ms, batch):
                self._history.sometimes["unknown append landed"] += gave_up()
            else:
                refused.append(batch.shard_id)
                self._history.sometimes["stale append refused"] += 1
        return refused

    def _append(self, replica_id: str, clock_offset_ms: int, batch: Batch) -> bool:
        events = tuple(_event(batch.first_seq + i, entry, batch.epoch) for i, entry in enumerate(batch.entries))
        sent = ShardBatch(batch.shard_id, batch.epoch, batch.first_seq, events, batch.rows, batch.replica_id)
        if self.tables.append([sent]):
            return False
        self._note_landed(replica_id, clock_offset_ms, batch)
        return True

    def _note_landed(self, replica_id: str, clock_offset_ms: int, batch: Batch) -> None:
        """Into W, and into the shard folded from W."""
        now_ms = self._scheduler.now_ms
        if self.tables.lease_left_ms(batch.shard_id) <= 0:
            self._history.sometimes["append landed after the lease was over"] += 1
        journal = self._history.journal[batch.shard_id]
        folded = self.folded[batch.shard_id]
        for seq, entry in enumerate(batch.entries, batch.first_seq):
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


class _Once:
    """Passes on whichever comes first: the answer, or giving up."""

    __slots__ = ("_done",)

    def __init__(self, done: Callable[[Any], None]) -> None:
        self._done: Callable[[Any], None] | None = done

    def answer(self, value: Any) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(value)

    def give_up(self) -> None:
        self.answer(None)


def _event(seq: int, entry: Entry, epoch: int) -> JournalEvent:
    reason = getattr(entry.record, "reason", "")
    return JournalEvent(
        seq, entry.at_ms, entry.namespace, entry.group_id, entry.generation_id, entry.record.kind, reason, {}, epoch
    )
