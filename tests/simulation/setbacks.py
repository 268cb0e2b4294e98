"""Worlds with a store that goes back to an earlier state: a restored backup, or a failover to a standby that was
behind.

The rules of the other worlds compare answers with the one journal that there ever was. Here a part of it is gone, so
these worlds have rules of their own, about what must hold all the same:

* G1: no generation of a group is at or below one that was granted before, in the lost lines or elsewhere. It counts as
  granted once its owner has answered from that line on, or another owner has read it: a line whose owner never
  received the store's answer gave no member a token;
* G2: no epoch of a shard is, so that no late write of a lost owner passes;
* G3: a replica that knew of lost lines finds it with its first read of the owners;
* G4: its remembered generations are below the floor in the end;
* after one lease, nothing is answered that the store has lost (D1, S15), and the rest is as the journal says (S14);
* without faults, the groups agree again within the usual time (L7).

G1 and G2 have one exception, by rule: where the server's timeline cannot be read, or the store goes back to a state in
which the shard was not yet renewed after an earlier failover, a replica that does not know of the lost lines cannot
notice, or not that it is the second time. It may claim and grant until a floor is above all that was granted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, NamedTuple

from rota.core.group import records as r
from rota.core.replica.going_back import Known, Setback, is_setback
from rota.core.replica.ports import Floor, ShardBatch, ShardClaim, ShardOwner
from rota.protocol.ids import shard_of
from rota.testing.scheduler import Process
from tests.simulation.history import GroupKey, Landed
from tests.simulation.profiles import Parts, Profile
from tests.simulation.replica import SimulatedReplica
from tests.simulation.store import Found, SimulatedStore, Tables, entry_of
from tests.simulation.without import NOTHING, Without
from tests.simulation.world import World

MOST_BEHIND_MS = 4_000


@dataclass(slots=True)
class Snapshot:
    """A store as it was."""

    shards: dict[int, Any]
    replicas: dict[str, Any]
    journal: dict[int, list[Landed]]
    folded: dict[int, Any]
    loaded: dict[Any, Any]


@dataclass(slots=True)
class Back:
    """One time that the store went back."""

    at_ms: int
    behind_ms: int
    is_visible: bool
    """The server's timeline is another, as after a failover."""
    knowers: dict[SimulatedReplica, dict[int, Known]] = field(default_factory=dict)
    """What replicas knew, by shard, of lines that are gone."""
    noted: set[tuple[SimulatedReplica, int]] = field(default_factory=set)
    """Of these, what the replica has noticed."""
    remembered: dict[SimulatedReplica, dict[int, int]] = field(default_factory=dict)
    """By replica and shard that it served: the highest generation in its memory."""


class _LandedGeneration(NamedTuple):
    """A line of the journal from which a group has a generation."""

    epoch: int
    revision: int
    key: GroupKey
    generation_id: int


class SetbackTables(Tables):
    """Tables that can be copied and put back."""

    on_floors: Callable[[Mapping[int, Floor]], None]

    def raise_floors(self, floors: Mapping[int, Floor]) -> None:
        super().raise_floors(floors)
        self.on_floors(floors)

    def copied(self) -> tuple[dict[int, Any], dict[str, Any]]:
        return {shard_id: _copied(shard) for shard_id, shard in self._shards.items()}, dict(self._replicas)

    def put_back(self, shards: dict[int, Any], replicas: dict[str, Any]) -> None:
        self._shards = {shard_id: _copied(shard) for shard_id, shard in shards.items()}
        self._replicas = dict(replicas)

    def floor_of(self, shard_id: int) -> int:
        shard = self._shards.get(shard_id)
        return shard.generation_floor if shard is not None else 0


def _copied(shard: Any) -> Any:
    """Rows are frozen, so their tables are copied and they are not."""
    twin = copy(shard)
    for name in ("events", "payloads", "groups", "members", "offsets", "topics", "side_commits"):
        setattr(twin, name, copy(getattr(shard, name)))
    return twin


class SetbackStore(SimulatedStore):
    """A store of which snapshots are kept."""

    tables: SetbackTables
    times_back = 0

    def new_tables(self) -> SetbackTables:
        return SetbackTables(self.clock_ms)

    def snapshot(self) -> Snapshot:
        shards, replicas = self.tables.copied()
        journal = {shard_id: list(lines) for shard_id, lines in self._history.journal.items()}
        return Snapshot(shards, replicas, journal, deepcopy(self.folded), dict(self._loaded_facts))

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
        """As in the other worlds; but a connection to the server as it was never reaches the one that went back."""
        times = self.times_back

        def run() -> Found | None:
            return statement() if times == self.times_back else None

        super().submit(client, run, timeout_ms, done, cut_off=cut_off, runs_in=runs_in)

    def go_back(self, to: Snapshot) -> None:
        self.times_back += 1
        self.tables.put_back(to.shards, to.replicas)
        for shard_id, lines in to.journal.items():
            self._history.journal[shard_id][:] = lines
        self.folded, self._loaded_facts = deepcopy(to.folded), dict(to.loaded)

    def _note_landed(self, replica_id: str, clock_offset_ms: int, batch: ShardBatch) -> None:
        super()._note_landed(replica_id, clock_offset_ms, batch)
        self.on_landed(batch)

    on_landed: Callable[[ShardBatch], None]


class SetbackWorld(World):
    """A world with a store that goes back once or twice. The random numbers of setbacks have a stream of their own."""

    store: SetbackStore

    def __init__(self, seed: int, profile: Profile | None = None, without: Without = NOTHING) -> None:
        self.backs: list[Back] = []
        draws = self._draws = Random(f"{seed}:setbacks")
        self._highest: dict[GroupKey, int] = {}
        """The highest generation that was granted."""
        self._landed: dict[int, list[_LandedGeneration]] = {}
        """By shard: generations in the journal that no reply is known to show."""
        self._epochs: dict[int, int] = {}
        self._excused: set[int] = set()
        """Shards of which generations were lost, and no floor is above them yet."""
        self._excused_epochs: set[int] = set()
        """Shards of which epochs were lost, and no floor is above them yet."""
        self._found_ms: dict[SimulatedReplica, int] = {}

        self.is_visible = draws.random() < 0.5
        super().__init__(seed, profile, without)
        self.store.on_landed = self._note_generations
        self.store.tables.on_floors = self._note_floors
        if self.is_visible:
            self.store.tables.timeline = "0"
        until_ms = self.profile.safety_ms
        for first_ms, last_ms in ((2_500, until_ms // 2), (until_ms // 2 + 2_000, until_ms - 500)):
            if first_ms < last_ms and (not self.backs or draws.random() < 0.4):
                at_ms = draws.randint(first_ms, last_ms)
                back = Back(at_ms, draws.randint(20, min(MOST_BEHIND_MS, at_ms)), self.is_visible)
                self.backs.append(back)
                self.scheduler.after(at_ms - back.behind_ms, None, self._keep, back)

    def _parts(self, profile: Profile) -> Parts:
        """Readers of the journal would have to go back, too."""
        parts = super()._parts(profile)
        return replace(parts, beside=parts.beside - {"prune"})

    def _new_store(self) -> SetbackStore:
        return SetbackStore(self.scheduler, self.rng, self.profile, self.history)

    def _keep(self, back: Back) -> None:
        """Not before each shard was claimed once: a first claim looks like that of a new store."""
        if len(self.store.tables.owners()) == self.profile.shards:
            self.scheduler.after(back.behind_ms, None, self._go_back, back, self.store.snapshot())

    def _go_back(self, back: Back, to: Snapshot) -> None:
        timeline = self.store.tables.timeline
        self.store.go_back(to)
        for shard_id, landed in self._landed.items():
            last_seq = len(self.history.journal[shard_id])
            landed[:] = [each for each in landed if each.revision <= last_seq]
        self.sometimes("the store went back")
        if back.is_visible:
            self.store.tables.timeline = str(back.at_ms)
        for replica in self.replicas.values():
            if not replica.dead:
                self._note_knower(back, replica)
        noticed = {shard_id for shard_id, row in to.shards.items() if back.is_visible and row.timeline == timeline}
        unnoticed = set(range(self.profile.shards)) - noticed
        self._excused |= unnoticed
        self._excused_epochs |= unnoticed

    def _rows(self) -> dict[int, ShardOwner]:
        return {row.shard_id: row for row in self.store.tables.owners()}

    def _note_knower(self, back: Back, replica: SimulatedReplica) -> None:
        rows = self._rows()
        for shard_id, known in replica.memory.ask().known.items():
            if _is_gone(known, rows.get(shard_id)):
                back.knowers.setdefault(replica, {})[shard_id] = known
                if shard_id in replica.owned:
                    highest = replica.owned[shard_id].shard.highest_generation
                    back.remembered.setdefault(replica, {})[shard_id] = highest

    # --- rules ------------------------------------------------------------------------------------

    def is_excused(self, shard_id: int) -> bool:
        """An owner that the store does not answer finds out when its lease is over."""
        now_ms = self.scheduler.now_ms
        return any(back.at_ms <= now_ms <= back.at_ms + self.profile.lease_ms for back in self.backs)

    def note_setbacks(self, replica: SimulatedReplica, setbacks: Sequence[Setback]) -> None:
        self._found_ms[replica] = self.scheduler.now_ms
        for back in self.backs:
            for setback in setbacks:
                if back.knowers.get(replica, {}).pop(setback.shard_id, None) is not None:
                    back.noted.add((replica, setback.shard_id))
        if not any(back.at_ms <= self.scheduler.now_ms for back in self.backs):
            super().note_setbacks(replica, setbacks)
        self.sometimes("a replica finds that the store went back")

    def note_owners_read(self, replica: SimulatedReplica, sent_ms: int) -> None:
        if replica.memory.setbacks or sent_ms <= self._found_ms.get(replica, -1):
            return  # Found outside of a round: the next one has begun. Or found while this read was under way.
        for back in [each for each in self.backs if sent_ms >= each.at_ms]:
            for shard_id, known in back.knowers.pop(replica, {}).items():
                # Later epochs hide it from a replica that was away for long.
                if _is_gone(known, self._rows().get(shard_id)):
                    self.violation(f"G3 {replica.owner_id} knew more of shard {shard_id} and does not notice")

    def note_release(self, owner_id: str, shard_id: int, epoch: int, revision: int) -> None:
        super().note_release(owner_id, shard_id, epoch, revision)
        self._note_granted(shard_id, revision, epoch)

    def _note_granted(self, shard_id: int, revision: int, epoch: int | None = None) -> None:
        """All up to a line was shown: by the owner of that epoch, or, None, to the next owner."""
        left = []
        for each in self._landed.get(shard_id, []):
            if each.revision <= revision and epoch in (None, each.epoch):
                self._highest[each.key] = max(each.generation_id, self._highest.get(each.key, 0))
            else:
                left.append(each)
        self._landed[shard_id] = left

    def note_claims(self, claims: list[ShardClaim], replica_id: str) -> None:
        super().note_claims(claims, replica_id)
        for claim in claims:
            self._note_granted(claim.shard_id, claim.last_seq)
            if claim.epoch <= self._epochs.get(claim.shard_id, 0) and claim.shard_id not in self._excused_epochs:
                self.violation(f"G2 shard {claim.shard_id}: epoch {claim.epoch} was there before")
            self._epochs[claim.shard_id] = max(claim.epoch, self._epochs.get(claim.shard_id, 0))

    def _note_floors(self, floors: Mapping[int, Floor]) -> None:
        for shard_id, floor in floors.items():
            if floor.generation_id > self._highest_of(shard_id):
                self._excused.discard(shard_id)
            if floor.epoch >= self._epochs.get(shard_id, 0):
                self._excused_epochs.discard(shard_id)

    def _highest_of(self, shard_id: int) -> int:
        of_shard = (key for key in self._highest if shard_of(*key, self.profile.shards) == shard_id)
        return max((self._highest[key] for key in of_shard), default=0)

    def _note_generations(self, batch: ShardBatch) -> None:
        for revision, entry in enumerate(map(entry_of, batch.events), batch.first_seq):
            record, key = entry.record, (entry.namespace, entry.group_id)
            match record:
                case r.GenerationCompleted() | r.GroupEmptied() | r.AssignmentSynced(resync=True):
                    former = self._highest.get(key, 0)
                    if record.generation_id <= former and batch.shard_id not in self._excused:
                        self.violation(
                            f"G1 {entry.group_id}: generation {record.generation_id} of epoch {batch.epoch} follows "
                            f"{former}"
                        )
                    landed = _LandedGeneration(batch.epoch, revision, key, record.generation_id)
                    self._landed.setdefault(batch.shard_id, []).append(landed)
                case r.GenerationRaised():
                    self.sometimes("a generation was raised")

    def check_floors(self) -> list[str]:
        """G4, at the end: a replica that is still up has written its memory."""
        return [
            f"G4 shard {shard_id}: {replica.owner_id} knew generation {highest}, the floor is {floor}"
            for back in self.backs
            for replica, shards in back.remembered.items()
            for shard_id, highest in shards.items()
            if not replica.dead
            and (replica, shard_id) in back.noted
            and (floor := self.store.tables.floor_of(shard_id)) <= highest
        ]


def _is_gone(known: Known, row: ShardOwner | None) -> bool:
    """Whether the store's row shows that it has lost known events of the shard."""
    if row is None:
        return known.epoch > 0
    return is_setback(known, Known(row.epoch, row.replica_id, row.last_seq), row.claimed_seq)


def run_setback_seed(seed: int, profile: Profile | None = None, without: Without = NOTHING) -> tuple[World, list[str]]:
    """Play one world with a store that goes back, and check it."""
    world = SetbackWorld(seed, profile, without)
    history = world.run()
    return world, [*history.violations, *world.check_floors()]
