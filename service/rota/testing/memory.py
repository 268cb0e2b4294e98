"""The store's twin in memory: the same contract on plain data."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice

from rota.core.group.rows import (
    GroupRow,
    GroupState,
    MemberRow,
    OffsetRow,
    RowChanges,
    ShardImage,
    SideCommit,
    TopicRow,
    progress_of,
)
from rota.core.replica.ports import (
    EPOCHS_SKIPPED,
    RELEASED,
    Floor,
    JournalEvent,
    Renewal,
    Replica,
    ShardBatch,
    ShardClaim,
    ShardOwner,
    StoreRefused,
)
from rota.protocol.errors import ErrorCode, check_in_journal

# json.dumps would make an encoder for each line.
_dump = json.JSONEncoder(allow_nan=False).encode


@dataclass(slots=True)
class _Shard:
    """A shard's lease, journal and rows; a row stands under what names it."""

    replica_id: str = ""
    address: str = ""
    epoch: int = 0
    lease_until_ms: int = 0
    first_seq: int = 1
    """The first line that was not pruned."""
    claimed_seq: int = 0
    timeline: str | None = None
    generation_floor: int = 0
    epoch_floor: int = 0
    events: list[JournalEvent] = field(default_factory=list)
    payloads: list[str] = field(default_factory=list)
    """Those of `events` as text, as in a database: what the caller does to its payload later does not show here."""
    groups: dict[tuple[str, str], GroupRow] = field(default_factory=dict)
    members: dict[tuple[str, str, str], MemberRow] = field(default_factory=dict)
    offsets: dict[tuple[str, str, str, int], OffsetRow] = field(default_factory=dict)
    topics: dict[tuple[str, str], TopicRow] = field(default_factory=dict)
    side_commits: dict[int, SideCommit] = field(default_factory=dict)

    @property
    def last_seq(self) -> int:
        return self.first_seq - 1 + len(self.events)

    def is_held(self, claim: ShardClaim, replica_id: str) -> bool:
        return self.epoch == claim.epoch and self.replica_id == replica_id

    def accepts(self, batch: ShardBatch) -> bool:
        is_owner = self.epoch == batch.epoch and batch.replica_id in (None, self.replica_id)
        is_whole = all(side_id in self.side_commits for side_id in batch.rows.side_commits_taken)
        return is_owner and self.last_seq == batch.first_seq - 1 and is_whole

    def position_of(self, after_seq: int) -> int:
        """The index in `events` of the line after this one."""
        return max(after_seq - self.first_seq + 1, 0)

    def last_before(self, before_ms: int) -> int:
        """The last line of before then; 0 if there is none."""
        old = (event.seq for event in reversed(self.events) if event.at_ms < before_ms)
        return next(old, 0)

    def prune(self, up_to: int) -> None:
        gone = self.position_of(up_to)
        del self.events[:gone], self.payloads[:gone]
        self.first_seq += gone

    def apply(self, changes: RowChanges) -> None:
        self.groups.update({(row.namespace, row.group_id): row for row in changes.groups})
        for member in changes.members_deleted:
            self.members.pop(member, None)
        self.members.update({(row.namespace, row.group_id, row.image.member_id): row for row in changes.members})
        for offset in changes.offsets_deleted:
            self.offsets.pop(offset, None)
        self.offsets.update({(row.namespace, row.group_id, row.topic, row.partition): row for row in changes.offsets})
        self.topics.update({(row.namespace, row.topic): row for row in changes.topics})
        for taken in changes.side_commits_taken:
            self.side_commits.pop(taken, None)


@dataclass(slots=True)
class MemoryReader:
    """A reader of the journal, with the last line of each shard that it has read."""

    name: str
    positions: dict[int, int]

    def read(self, shard_id: int) -> int:
        return self.positions.get(shard_id, 0)


class MemoryTables:
    """The rows of a store, with plain methods: a simulator calls them and puts its faults around them.

    It outlives the stores on it, as a database outlives its clients. Each method is atomic and none raises
    `StoreUnavailable`. `clock_ms` is the store's clock, which alone judges leases.
    """

    def __init__(self, clock_ms: Callable[[], int], *, incarnation: str = "in-memory") -> None:
        self._clock_ms = clock_ms
        self.incarnation = incarnation
        self.timeline: str | None = None
        """Another one means another server, or a failover; None where it cannot be read."""
        self._shard_count: int | None = None
        self._shards: dict[int, _Shard] = {}
        self._replicas: dict[str, tuple[Replica, int]] = {}
        self.readers: dict[str, MemoryReader] = {}
        """Those that pruning waits for, by name."""
        self._side_ids = count(1)

    def open(self, shard_count: int) -> None:
        if self._shard_count is None:
            self._shard_count = shard_count
        if self._shard_count != shard_count:
            raise StoreRefused(f"the store was made with shard_count {self._shard_count}, not {shard_count}")

    def register(self, replica: Replica, ttl_ms: int) -> list[Replica]:
        now_ms = self._clock_ms()
        self._replicas[replica.replica_id] = (replica, now_ms + ttl_ms)
        return [up for _, (up, until_ms) in sorted(self._replicas.items()) if until_ms > now_ms]

    def deregister(self, replica_id: str) -> None:
        self._replicas.pop(replica_id, None)

    def claim(
        self,
        shard_ids: Sequence[int],
        replica_id: str,
        address: str,
        lease_ms: int,
        *,
        steal: bool = False,
        known_epochs: Mapping[int, int] | None = None,
    ) -> list[ShardClaim]:
        now_ms = self._clock_ms()
        taken = []
        for shard_id in sorted(set(shard_ids)):
            shard = self._shards.setdefault(shard_id, _Shard())
            known_epoch = known_epochs.get(shard_id, 0) if known_epochs is not None else 0
            is_as_known = known_epochs is None or shard.epoch <= known_epoch
            is_free = shard.lease_until_ms <= now_ms and is_as_known
            if shard.epoch and not (steal or is_free or shard.replica_id == replica_id):
                continue
            former = (shard.epoch, shard.replica_id, self._is_other_timeline(shard))
            shard.epoch = max(shard.epoch, shard.epoch_floor, known_epoch) + 1 + EPOCHS_SKIPPED * former[2]
            shard.replica_id, shard.address = replica_id, address
            shard.lease_until_ms, shard.claimed_seq = now_ms + lease_ms, shard.last_seq
            shard.timeline = self.timeline if shard.timeline is None else shard.timeline
            taken.append(ShardClaim(shard_id, shard.epoch, shard.last_seq, shard.generation_floor, *former))
        return taken

    def raise_floors(self, floors: Mapping[int, Floor]) -> None:
        for shard_id, floor in sorted(floors.items()):
            shard = self._shards.setdefault(shard_id, _Shard())
            shard.generation_floor = max(shard.generation_floor, floor.generation_id)
            shard.epoch_floor = max(shard.epoch_floor, floor.epoch)

    def renew(self, claims: Sequence[ShardClaim], replica_id: str, lease_ms: int) -> list[Renewal]:
        ours = {shard_id: self._shards[shard_id] for shard_id in self._held(claims, replica_id)}
        held = {shard_id: shard for shard_id, shard in ours.items() if shard.lease_until_ms != RELEASED}
        for shard in held.values():
            if self.timeline is not None and shard.lease_until_ms > self._clock_ms():
                shard.timeline = self.timeline
            shard.lease_until_ms = self._clock_ms() + lease_ms
        return [Renewal(shard_id, shard.last_seq, shard.generation_floor) for shard_id, shard in held.items()]

    def confirm(self, claims: Sequence[ShardClaim], replica_id: str) -> list[int]:
        durable = {claim.shard_id: claim.last_seq for claim in claims}
        held = self._held(claims, replica_id)
        return [shard_id for shard_id in held if self._shards[shard_id].last_seq >= durable[shard_id]]

    def release(self, claims: Sequence[ShardClaim], replica_id: str) -> None:
        for shard_id in self._held(claims, replica_id):
            self._shards[shard_id].lease_until_ms = RELEASED

    def owners(self) -> list[ShardOwner]:
        now_ms = self._clock_ms()
        return [
            ShardOwner(
                shard_id,
                shard.replica_id,
                shard.address,
                shard.epoch,
                shard.lease_until_ms - now_ms,
                shard.last_seq,
                lease_until_ms=shard.lease_until_ms,
                claimed_seq=shard.claimed_seq,
                incarnation=self.incarnation,
                generation_floor=shard.generation_floor,
                peer_address=self._replicas[shard.replica_id][0].peer_address
                if shard.replica_id in self._replicas
                else "",
            )
            for shard_id, shard in sorted(self._shards.items())
        ]

    def load(self, shard_id: int) -> ShardImage:
        shard = self._shards.get(shard_id, _Shard())
        return ShardImage(
            shard_id,
            last_seq=shard.last_seq,
            groups=tuple(shard.groups[name] for name in sorted(shard.groups)),
            members=tuple(sorted(shard.members.values(), key=_by_position)),
            offsets=progress_of(shard.topics.values(), (shard.offsets[name] for name in sorted(shard.offsets))),
            topics=tuple(shard.topics[name] for name in sorted(shard.topics)),
        )

    def append(self, batches: Sequence[ShardBatch]) -> list[int]:
        refused = []
        for batch in batches:
            shard = self._shards.get(batch.shard_id)
            if shard is None or not shard.accepts(batch):
                refused.append(batch.shard_id)
                continue
            shard.events.extend(_of_epoch(event, batch.epoch) for event in batch.events)
            shard.payloads.extend(_dump(event.payload) for event in batch.events)
            shard.apply(batch.rows)
            assert shard.last_seq == batch.last_seq
        return refused

    def check_fence(
        self, shard_id: int, namespace: str, group_id: str, generation_id: int, member_id: str
    ) -> ErrorCode:
        """The outcome of `rota.check_fence` for a transaction that commits progress."""
        shard = self._shards.get(shard_id, _Shard())
        group = shard.groups.get((namespace, group_id))
        if group is None or group.state == GroupState.DEAD:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.generation_id != generation_id or group.state == GroupState.EMPTY:
            return ErrorCode.ILLEGAL_GENERATION
        if (namespace, group_id, member_id) not in shard.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        awaits = group.state == GroupState.COMPLETING_REBALANCE
        return ErrorCode.REBALANCE_IN_PROGRESS if awaits else ErrorCode.NONE

    def commit_beside(self, shard_id: int, row: OffsetRow, member_id: str) -> None:
        """What `rota.commit_offsets` does at the end of a user's transaction, once it has found the fence to hold."""
        name = (row.namespace, row.group_id, row.topic, row.partition)
        side_id = next(self._side_ids)
        shard = self._shards[shard_id]
        topic = shard.topics.get((row.namespace, row.topic))
        shard.offsets[name] = row._replace(topic_id=topic.topic_id if topic is not None else 0)
        shard.side_commits[side_id] = SideCommit(shard_id, side_id, *name, member_id, None)

    def side_commits(self, shard_ids: Sequence[int]) -> list[SideCommit]:
        shards = [self._shards[shard_id] for shard_id in shard_ids if shard_id in self._shards]
        return [
            replace(side, row=shard.offsets.get((side.namespace, side.group_id, side.topic, side.partition)))
            for shard in shards
            for side in shard.side_commits.values()
        ]

    def read_events(
        self, shard_id: int, after_seq: int, limit: int, *, namespace: str | None = None, group_id: str | None = None
    ) -> list[JournalEvent]:
        shard = self._shards.get(shard_id, _Shard())
        check_in_journal(after_seq, shard.first_seq, shard.last_seq, self.incarnation)
        first = shard.position_of(after_seq)
        wanted = (
            (event, payload)
            for event, payload in zip(shard.events[first:], shard.payloads[first:], strict=True)
            if namespace in (None, event.namespace) and group_id in (None, event.group_id)
        )
        return [replace(event, payload=json.loads(payload)) for event, payload in islice(wanted, limit)]

    # --- the journal's readers, and pruning ------------------------------------------------------

    def register_reader(self, name: str) -> MemoryReader:
        """Let pruning wait for a reader that has read none of the present lines."""
        positions = {shard_id: shard.first_seq - 1 for shard_id, shard in self._shards.items()}
        return self.readers.setdefault(name, MemoryReader(name, positions))

    def first_seqs(self) -> dict[int, int]:
        """The first line of each shard that is still there."""
        return {shard_id: shard.first_seq for shard_id, shard in self._shards.items()}

    def last_before(self, before_ms: int) -> dict[int, int]:
        """The last line of before then of each shard that has one."""
        return {shard_id: end for shard_id, shard in self._shards.items() if (end := shard.last_before(before_ms))}

    def prune_shard(self, shard_id: int, up_to: int) -> None:
        """Delete the shard's lines up to this one, whatever their age and their readers."""
        self._shards[shard_id].prune(up_to)

    def _is_other_timeline(self, shard: _Shard) -> bool:
        return None not in (shard.timeline, self.timeline) and shard.timeline != self.timeline

    def _held(self, claims: Sequence[ShardClaim], replica_id: str) -> list[int]:
        held = {
            claim.shard_id
            for claim in claims
            if claim.shard_id in self._shards and self._shards[claim.shard_id].is_held(claim, replica_id)
        }
        return sorted(held)


class MemoryStore:
    """`ShardStore` on `MemoryTables`. It never waits; closing it leaves the tables as they are."""

    has_side_door = True

    def __init__(self, clock_ms: Callable[[], int], *, tables: MemoryTables | None = None) -> None:
        self.tables = tables if tables is not None else MemoryTables(clock_ms)

    @property
    def incarnation(self) -> str:
        return self.tables.incarnation

    async def open(self, shard_count: int) -> None:
        self.tables.open(shard_count)

    async def close(self) -> None:
        """Do nothing: the tables stay."""

    async def ping(self) -> None:
        """Always there."""

    async def register(self, replica: Replica, ttl_ms: int) -> list[Replica]:
        return self.tables.register(replica, ttl_ms)

    async def deregister(self, replica_id: str) -> None:
        self.tables.deregister(replica_id)

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
        return self.tables.claim(shard_ids, replica_id, address, lease_ms, steal=steal, known_epochs=known_epochs)

    async def raise_floors(self, floors: Mapping[int, Floor]) -> None:
        self.tables.raise_floors(floors)

    async def renew(self, claims: Sequence[ShardClaim], replica_id: str, lease_ms: int) -> list[Renewal]:
        return self.tables.renew(claims, replica_id, lease_ms)

    async def confirm(self, claims: Sequence[ShardClaim], replica_id: str) -> list[int]:
        return self.tables.confirm(claims, replica_id)

    async def release(self, claims: Sequence[ShardClaim], replica_id: str) -> None:
        self.tables.release(claims, replica_id)

    async def owners(self) -> list[ShardOwner]:
        return self.tables.owners()

    async def load(self, shard_ids: Sequence[int]) -> list[ShardImage]:
        return [self.tables.load(shard_id) for shard_id in shard_ids]

    async def append(self, batches: Sequence[ShardBatch]) -> list[int]:
        return self.tables.append(batches)

    async def side_commits(self, shard_ids: Sequence[int]) -> list[SideCommit]:
        return self.tables.side_commits(shard_ids)

    async def read_events(
        self, shard_id: int, after_seq: int, limit: int, *, namespace: str | None = None, group_id: str | None = None
    ) -> list[JournalEvent]:
        return self.tables.read_events(shard_id, after_seq, limit, namespace=namespace, group_id=group_id)


def _by_position(row: MemberRow) -> tuple[str, str, int, str]:
    return row.namespace, row.group_id, row.position, row.image.member_id


def _of_epoch(event: JournalEvent, epoch: int) -> JournalEvent:
    return event if event.epoch == epoch else replace(event, epoch=epoch)
