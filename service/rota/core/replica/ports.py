"""The ports of a replica: the durable store, and liveness. In-memory implementations obey the same contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from msgspec import Struct

from rota.core.group.rows import RowChanges, ShardImage, SideCommit
from rota.protocol.messages import Reply

if TYPE_CHECKING:  # A command that opens a store does not load the core.
    from rota.core.group.sessions import MemberName

EPOCHS_SKIPPED = 1_000
"""By how much the epoch of a claim grows beyond the next one, where the server's timeline is another."""


class StoreUnavailable(Exception):
    """The store cannot be reached or did not answer. A write that raised this may or may not have landed."""


class StoreLost(StoreUnavailable):
    """The store is not this process's any more: its file or its lock is another one. No write is accepted."""


class StoreRefused(Exception):
    """The store cannot be opened and waiting will not help: wrong schema, wrong shard count, no rights.

    Raised at the start alone. A store that is in use raises `StoreUnavailable` for the same.
    """


@dataclass(frozen=True, slots=True)
class JournalEvent:
    """One line of the journal. `(shard_id, seq)` is dense: a shard's lines count 1, 2, 3 … without a gap.

    `at_ms` is wall-clock milliseconds since 1970 at the owner; `payload` holds JSON values only.
    Events of a shard itself (acquired, released) have an empty `namespace` and `group_id`.
    """

    seq: int
    at_ms: int
    namespace: str
    group_id: str
    generation_id: int
    kind: str
    reason: str
    payload: dict[str, Any]
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class ShardBatch:
    """What one shard writes in one transaction: journal lines `first_seq, first_seq + 1, …` and their rows."""

    shard_id: int
    epoch: int
    first_seq: int
    events: tuple[JournalEvent, ...]
    rows: RowChanges
    replica_id: str | None = None
    """The owner: where the store went back, another replica may have the same epoch. None: any."""

    @property
    def last_seq(self) -> int:
        """The number of the journal's last line once this batch is stored."""
        return self.first_seq - 1 + len(self.events)


@dataclass(frozen=True, slots=True)
class ShardClaim:
    """A shard that is now ours: the epoch that each of our writes must carry, and where its journal ends."""

    shard_id: int
    epoch: int
    last_seq: int
    generation_floor: int = field(default=0, compare=False)
    """No group of the shard may grant this generation or an earlier one."""
    former_epoch: int = field(default=0, compare=False)
    """The epoch before this claim; 0 where the shard was never claimed."""
    former_replica_id: str = field(default="", compare=False)
    is_other_timeline: bool = field(default=False, compare=False)
    """The shard's last lease was granted by another server, or by this one before a failover or a restore. Stays true
    for later claims until a lease is renewed."""


class Renewal(NamedTuple):
    """A shard with a renewed lease, as the store has it."""

    shard_id: int
    last_seq: int
    """The journal's last entry."""
    generation_floor: int


class Floor(NamedTuple):
    """What a shard never grants again, because it may have done so before its store went back to an earlier state."""

    generation_id: int
    """Each group's next generation is greater than this."""
    epoch: int
    """The next claim's epoch is greater than this."""


RELEASED = 0
"""The end of a lease that its owner has released: no clock has to judge it."""


@dataclass(frozen=True, slots=True)
class ShardOwner:
    """The owner of a shard, by the store's clock. `lease_left_ms` is 0 or less where the lease is over."""

    shard_id: int
    replica_id: str
    address: str
    epoch: int
    lease_left_ms: int
    last_seq: int = 0
    reported_by: str = ""
    """The replica that says so, where one was asked."""
    grpc_address: str = ""
    worker_http_port: int = 0
    worker_grpc_port: int = 0
    """The owner's port that no other worker shares, at the host that was called. 0 is none."""
    lease_until_ms: int = 0
    """When the lease ends, as the store's clock shows it; `RELEASED`, also where the store was not asked."""
    claimed_seq: int | None = None
    """The journal's last entry when this epoch began; None if that is not known."""
    incarnation: str = ""
    """The random id of the journal, where the store was asked."""
    generation_floor: int = 0
    """See `Floor`."""
    peer_address: str = ""
    """Where other replicas reach the owner, as far as the store still has its registration."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A process that serves this store: where clients reach it, and where its peers do.

    Workers of one machine have one address, and each may have ports of its own beside.
    """

    replica_id: str
    address: str
    peer_address: str = ""
    grpc_address: str = ""
    worker_http_port: int = 0
    worker_grpc_port: int = 0


class ShardStore(Protocol):
    """Durable state of all shards, with leases that only the store's own clock judges.

    Every method raises `StoreUnavailable` when the store cannot answer.
    """

    @property
    def has_side_door(self) -> bool:
        """Can users commit progress here in transactions of their own, which no owner sees?"""

    async def open(self, shard_count: int) -> None:
        """Check the schema and fix `shard_count` when the store is new; `StoreRefused` if either does not fit."""

    async def close(self) -> None: ...

    async def ping(self) -> None:
        """One round trip, for readiness."""

    async def register(self, replica: Replica, ttl_ms: int) -> list[Replica]:
        """Say that `replica` is up for `ttl_ms` more, by the store's clock; returns all that are, ordered by id."""

    async def deregister(self, replica_id: str) -> None:
        """This replica is stopping: no other one should leave shards to it."""

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
        """Take the shards among `shard_ids` with an expired lease, and those that are `replica_id`'s already.

        With `known_epochs` only those that no other replica has claimed since these were read.

        Each taken shard gets an epoch above its last one, its floor, and the one in `known_epochs`, also when the same
        replica takes it again. Where the server's timeline is another, it gets an epoch `EPOCHS_SKIPPED` higher: some
        may be lost. `steal` takes them whatever their lease says: for the embedded store, where a file lock proves
        that the former owner is gone.
        """

    async def raise_floors(self, floors: Mapping[int, Floor]) -> None:
        """Raise the floors of these shards, by shard id, whichever replica owns them. A floor never falls."""

    async def renew(self, claims: Sequence[ShardClaim], replica_id: str, lease_ms: int) -> list[Renewal]:
        """Prolong leases that were not released; returns the shards that are ours with the claim's epoch, by id."""

    async def confirm(self, claims: Sequence[ShardClaim], replica_id: str) -> list[int]:
        """Read which of the shards are still ours with the claim's epoch, whatever any clock says.

        None with a journal that ends before the claim's `last_seq`: its store went back to an earlier state.
        """

    async def release(self, claims: Sequence[ShardClaim], replica_id: str) -> None:
        """End the leases now, where they are still ours with the claim's epoch."""

    async def owners(self) -> list[ShardOwner]:
        """Every shard that was ever claimed, with its owner."""

    async def load(self, shard_ids: Sequence[int]) -> list[ShardImage]:
        """All rows of these shards, read in one snapshot; an image for each, in the order given."""

    async def append(self, batches: Sequence[ShardBatch]) -> list[int]:
        """Write the batches in one transaction and return once they are durable.

        Returns the ids of the shards with a rejected batch, because their epoch is no longer the
        store's, `first_seq` does not follow the journal's end, or the store has lost a side commit that the batch
        takes over; nothing of those was written, all others were. Raises `StoreUnavailable` if the outcome is unknown.
        """

    async def side_commits(self, shard_ids: Sequence[int]) -> list[SideCommit]:
        """What came in by the side door and no append has taken yet, of these shards, in the order of coming."""

    async def read_events(
        self, shard_id: int, after_seq: int, limit: int, *, namespace: str | None = None, group_id: str | None = None
    ) -> list[JournalEvent]:
        """Journal lines with `seq > after_seq` in order, of one group where it is named.

        Raises `LinesPruned` where the shard's journal begins later than `after_seq + 1`, and `ReaderIsAhead` where it
        ends before `after_seq`, also with `limit` 0: the checks and the lines are of one snapshot, so a reader never
        skips a line without noticing.
        """


class LivenessUnavailable(Exception):
    """The liveness store cannot be reached or did not answer in time. The update may or may not have arrived."""


@dataclass(frozen=True, slots=True)
class ShardNews:
    """A shard's members with the age of their last heartbeats, and members to forget."""

    shard_id: int
    seen_ms_ago: Mapping[MemberName, int]
    gone: Sequence[MemberName]


@dataclass(frozen=True, slots=True)
class SeenMembers:
    """The age of the last heartbeat of a shard's members, by the liveness store's clock.

    `published_ms_ago` is the age of the owner's last update, None if nothing is known. Heartbeats since then
    may be missing, so that time must not count against any member.
    """

    seen_ms_ago: Mapping[MemberName, int]
    published_ms_ago: int | None


class Liveness(Protocol):
    """The members' last heartbeats, shared by all replicas of a store, by its own clock. It may forget everything.

    It holds times of hearing and not deadlines: a replica that does not own the shard does not know how long a
    member's session is. Every method answers within a few tenths of a second or raises `LivenessUnavailable`.
    """

    async def ping(self) -> None:
        """One round trip."""

    async def publish(self, news: Sequence[ShardNews]) -> list[int]:
        """An owner's news. A time only ever moves forward.

        Returns the shards of which earlier news are lost, so that all has to be published again.
        """

    async def read(self, shard_id: int) -> SeenMembers:
        """All that is known of a shard."""

    async def seen_ms_ago(self, members: Sequence[tuple[int, MemberName]]) -> list[int | None]:
        """The age of the last heartbeat of each of these, by shard and name; None for unknown members."""

    async def record(self, shard_id: int, members: Sequence[MemberName]) -> list[bool]:
        """Record heartbeats of these members, by a replica that does not own the shard. False for unknown members."""

    async def close(self) -> None: ...


class Answer(Struct, frozen=True):
    """A reply with the place in the shard's history that it reflects.

    `revision` is the journal's last entry at that moment, `epoch` the owner's; both are 0 where no shard answered.
    """

    reply: Reply
    revision: int = 0
    epoch: int = 0
    owner: str = ""
    """With `NOT_COORDINATOR`: where the owner is, as far as is known."""
    shards: tuple[int, ...] = ()
    """With a list: the replica that this part of it is from."""
    undecided: bool = False
    """With a refusal: no shard has decided anything for this call, so a forwarder may ask the next owner."""


Cancel = Callable[[], object]
"""Un-parks a call whose client is gone: it gets no answer. Does nothing if it has one."""
