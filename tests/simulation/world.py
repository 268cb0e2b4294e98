"""A whole service in one process: replicas, a store, a network and members, all drawn from one seed.

world = World(seed)
history = world.run()
assert not check(history, world.profile)
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Sequence
from random import Random

from rota.core.group.rows import GroupState
from rota.core.group.shard import Shard
from rota.core.group.state import COMPLETING_REBALANCE, PREPARING_REBALANCE, STABLE
from rota.core.replica.forwarding import shard_of_request
from rota.core.replica.going_back import Setback
from rota.core.replica.owned_shard import OwnedShard
from rota.core.replica.ports import ShardClaim
from rota.protocol.ids import shard_of
from rota.protocol.limits import Limits
from rota.protocol.messages import Reply, Request, parks_for_ms
from rota.testing.scheduler import Scheduler
from tests.simulation.assigning import Assigning
from tests.simulation.facts import facts_of, image_differences, without_offsets
from tests.simulation.freezes import CLOCKS_DIFFER_MS, wait_for_their_end
from tests.simulation.history import Call, Effect, GroupKey, History
from tests.simulation.invariants import check_join_phase, check_sync_phase
from tests.simulation.liveness import LivenessServer
from tests.simulation.member import Share
from tests.simulation.nemesis import Nemesis
from tests.simulation.network import Network
from tests.simulation.profiles import Parts, Profile, parts_of, profile_of, with_parts
from tests.simulation.replica import LONGEST_ANSWER_MS, SimulatedReplica
from tests.simulation.situations import note_reply_situation, note_takeover
from tests.simulation.store import STORE_CLOCK_MS, SimulatedStore
from tests.simulation.without import NOTHING, Without
from tests.simulation.wrong_forms import WrongForms

NAMESPACE = "sim"
LONGEST_CALL_MS = 5_500
"""How long a member's call may take beyond its own wait before the member gives it up."""
QUIET_LEASES = 3
"""This many leases after the last fault, and its own start, every replica serves its assigned shards."""


class World:
    """Everything there is. `run` plays the safety phase, then takes the faults away and waits for peace (L7)."""

    def __init__(
        self,
        seed: int,
        profile: Profile | None = None,
        without: Without = NOTHING,
    ) -> None:
        """A `profile` that is given has its own size; see `profile_of` for the others."""
        self.seed = seed
        self.without = without
        base = profile or profile_of(seed)
        self.parts = self._parts(base)
        self.profile = without.of(with_parts(base, self.parts))
        self.rng = Random(seed)
        self.scheduler = Scheduler()
        self.wrong_forms = WrongForms(self)
        self.liveness = LivenessServer(self) if self.parts.liveness else None
        self.cut_links: dict[frozenset[str], int] = {}
        """Until when two replicas cannot reach each other."""
        self.history = History(liveness_faults=self.liveness.faults_ms if self.liveness else [])
        self.check_invariants = self.chance(0.25)
        self.limits = self.history.limits = self._limits()
        self.store = self._new_store()
        self.store.usual_ms = 60 if self.parts.sluggish else 3
        self.late_leases_until_ms = 0
        """Leases that are asked for before then are granted at once, and the answers come late."""
        self.network = Network(self)
        self.troublesome = True
        self.working = not self.chance(0.3) and not self.parts.calm
        """In some worlds no member commits: an owner that has lost its lease does not learn it by its next write."""
        self.is_over = False
        self.partitions: dict[GroupKey, int] = {}
        self.shares: dict[tuple[GroupKey, int], dict[str, tuple[int, ...]]] = {}
        """The leaders' assignments, by generation."""
        self.acked: dict[int, int] = dict.fromkeys(range(self.profile.shards), 0)
        self._tokens: dict[tuple[GroupKey, int], int] = {}
        self._numbers = 0
        self._clock_offsets: dict[str, int] = {}
        self.groups: list[GroupKey] = [(NAMESPACE, f"g{number}") for number in range(self.profile.groups)]
        self.partitions = dict.fromkeys(self.groups, 4)
        self.assigning = Assigning(self)
        self.is_unruly = seed // 8 % 4 == 3
        """In some worlds, of all profiles, a client acts under names that are not its own."""
        self.replica_ids = [f"r{number}" for number in range(self.profile.replicas)]
        self.processes: list[SimulatedReplica] = []
        """Every incarnation of every replica."""
        self.replicas = {replica_id: self.new_replica(replica_id) for replica_id in self.replica_ids}
        self.nemesis = self._new_nemesis()

    def _parts(self, profile: Profile) -> Parts:
        return parts_of(self.seed, profile)

    def _new_store(self) -> SimulatedStore:
        return SimulatedStore(self.scheduler, self.rng, self.profile, self.history)

    def _new_nemesis(self) -> Nemesis:
        return Nemesis(self)

    def _limits(self) -> Limits:
        return Limits(
            initial_rebalance_delay_ms=self.profile.initial_rebalance_delay_ms,
            group_max_size=2 if self.chance(0.1) else 100,
            offsets_retention_ms=5_000,
            empty_group_retention_ms=0,
        )

    def new_replica(self, replica_id: str) -> SimulatedReplica:
        """Start a replica, for the first time or after it has ended."""
        replica = SimulatedReplica(self, replica_id)
        self.processes.append(replica)
        return replica

    def new_owner_id(self, replica_id: str) -> str:
        """Each process registers under an id of its own."""
        return f"{replica_id}-{len(self.processes)}"

    def note_setbacks(self, replica: SimulatedReplica, setbacks: Sequence[Setback]) -> None:
        """A replica has found that the store went back, which it does only in the worlds of `setbacks.py`."""
        self.violation(f"D2 {replica.owner_id} finds lines lost in a store that lost none: {setbacks}")

    def note_owners_read(self, replica: SimulatedReplica, sent_ms: int) -> None:
        """A replica has compared the owners that it has read with its memory."""

    def is_excused(self, _shard_id: int) -> bool:
        """Whether a replica may answer now for what the store has lost."""
        return False

    # --- running ---------------------------------------------------------------------------------

    def run(self) -> History:
        """Both phases. What went wrong while it happened is in the history; `checks` finds the rest."""
        logged = logging.root.manager.disable
        logging.disable(logging.CRITICAL)  # What happens in a world is expected, and in its trace.
        try:
            try:
                self.nemesis.start()
                self.scheduler.run_until(self.profile.safety_ms)
                self.nemesis.stop()
                self._wait_for_peace()
            except Exception as crash:  # Whatever the core dies of is found with its seed, like any other violation.
                self.violation(f"crash: {crash!r} {traceback.format_exc(limit=-3)}")
            for member in self.nemesis.members():
                if not member.dead:
                    member.paused_until_ms = 0
                    member.close_hold()
            sides = self.store.tables.side_commits(range(self.profile.shards))
            self.history.on_the_way = frozenset(
                ((side.namespace, side.group_id), side.partition, side.row.offset)
                for side in sides
                if side.row is not None
            )
            self.is_over = True
            self._end_processes()
        finally:
            logging.disable(logged)
        return self.history

    def _end_processes(self) -> None:
        for process in self.processes:
            process.end()

    def _wait_for_peace(self) -> None:
        """L7: without faults, every group with live members gets Stable, and all of them agree."""
        end_ms = self.scheduler.now_ms + self.profile.converge_ms
        while self.scheduler.now_ms < end_ms:
            self.scheduler.run_until(self.scheduler.now_ms + 250)
            if not any(self._unrest(group) for group in self.groups):
                self._check_quiet()
                wait_for_their_end(self)
                return
        for group in self.groups:
            if unrest := self._unrest(group):
                self.violation(f"L7 {group[1]}: {unrest}")

    def _check_quiet(self) -> None:
        """L6: no caller waits for an answer longer than it asked to."""
        self.working = False
        for member in self.nemesis.members():
            for exchange in member.exchanges.values():
                since_ms = max(exchange.call.sent_ms, member.paused_until_ms)
                due_ms = since_ms + parks_for_ms(exchange.call.request) + LONGEST_CALL_MS
                if self.scheduler.now_ms > due_ms and not member.dead:
                    self.violation(f"L6 {exchange.call.request} has waited since {since_ms}")
        settles_ms = QUIET_LEASES * self.profile.lease_ms
        self.scheduler.run_until(self.scheduler.now_ms + settles_ms)
        # A replica that the last faults stopped may come back late.
        last_start_ms = max(replica.started_ms for replica in self.replicas.values())
        self.scheduler.run_until(max(self.scheduler.now_ms, last_start_ms + settles_ms))
        for replica in self.replicas.values():
            self._check_calls(replica)
            self._check_ready(replica)

    def _check_calls(self, replica: SimulatedReplica) -> None:
        """L6: every call at a running replica ends by its deadline."""
        for delivery, since_ms in replica.waiting():
            waited_ms = self.scheduler.now_ms - since_ms
            if waited_ms > parks_for_ms(delivery.call.request) + LONGEST_ANSWER_MS:
                self.violation(f"L6 {delivery.call.request} has waited at {replica.owner_id} for {waited_ms} ms")

    def _check_ready(self, replica: SimulatedReplica) -> None:
        """L9: without faults a running replica serves every shard that is due to it."""
        is_ready, why = replica.local.ready()
        if not replica.is_hindered() and not is_ready:
            self.violation(f"L9 {replica.owner_id} is not ready: {why}")

    def _unrest(self, key: GroupKey) -> str:
        """Why a group is not at peace; empty where it is."""
        live = [member for member in self.nemesis.members() if member.group == key and member.is_live]
        owned = self.owner(shard_of(*key, self.profile.shards))
        if owned is None:
            return "its shard has no owner"
        group = owned.shard.groups.get(key)
        members = set(group.members) if group is not None else set()
        state = group.state if group is not None else GroupState.EMPTY
        if self.limits.group_max_size < 100:
            live = [member for member in live if member.core.member_id in members]
        wanted = {member.core.member_id for member in live}
        if members != wanted:
            return f"{state} with members {sorted(members)}, alive are {sorted(wanted)}"
        if group is not None and members and state is not STABLE:
            return f"{state} since {group.state_since_ms}: {group.rebalance_reason}"
        if late := [m.name for m in live if group is not None and m.core.generation_id != group.generation_id]:
            return f"{late} are not in generation {group.generation_id if group else 0}"
        if lost := [m.name for m in live if m.core.assignment is None]:
            return f"{lost} hold no assignment"
        return ""

    def owner(self, shard_id: int) -> OwnedShard | None:
        """The shard at the replica with the store's epoch."""
        by_owner_id = {replica.owner_id: replica for replica in self.replicas.values()}
        for row in self.store.tables.owners():
            replica = by_owner_id.get(row.replica_id)
            if row.shard_id == shard_id and replica is not None and not replica.dead:
                owned = replica.owned.get(shard_id)
                return owned if owned is not None and owned.epoch == row.epoch else None
        return None

    def is_link_cut(self, one: str, other: str) -> bool:
        """Can two replicas not reach each other now?"""
        return self.scheduler.now_ms < self.cut_links.get(frozenset((one, other)), 0)

    # --- draws and numbers -----------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def next_call(self) -> int:
        self._numbers += 1
        return self._numbers

    next_commit = next_call

    def new_member_id(self, client: str) -> str:
        self._numbers += 1
        return f"{client}-{self._numbers}"

    def clock_offset_of(self, replica_id: str) -> int:
        """Wall clocks are wrong by up to an hour, each in its own way (T1)."""
        if replica_id not in self._clock_offsets:
            wrong_ms = self.rng.randint(0, 7_200_000)
            # Pruning compares these clocks, which date the lines, with the store's: so they differ by a "day" or so.
            # A freeze ends by the clock of the owner of that time.
            self._clock_offsets[replica_id] = (
                STORE_CLOCK_MS + wrong_ms % CLOCKS_DIFFER_MS
                if self.parts.beside & {"prune", "freeze_group"}
                else wrong_ms
            )
        return self._clock_offsets[replica_id]

    def grow(self, group: GroupKey) -> int:
        """The topic gets one more partition; returns its number."""
        self.partitions[group] += 1
        return self.partitions[group] - 1

    # --- notes -----------------------------------------------------------------------------------

    def new_call(self, client: str, request: Request) -> Call:
        shard_id = shard_of_request(request, self.profile.shards)
        call = Call(self.next_call(), client, request, shard_id, self.scheduler.now_ms, self.acked[shard_id])
        self.history.calls.append(call)
        return call

    def note_reply(self, call: Call, reply: Reply, revision: int, epoch: int) -> None:
        call.ret_ms = self.scheduler.now_ms
        call.reply, call.revision, call.epoch = reply, revision, epoch
        if epoch:
            self.acked[call.shard_id] = max(self.acked[call.shard_id], revision)
        note_reply_situation(self.history, call)

    def note_release(self, owner_id: str, shard_id: int, epoch: int, revision: int) -> None:
        """D1: nothing is answered that the store does not have. S15: a former owner answers nothing."""
        self.history.releases[(shard_id, epoch)] = self.scheduler.now_ms
        if self.is_excused(shard_id):
            return
        if self.store.tables.owner_of(shard_id) != owner_id:
            self.violation(f"S15 shard {shard_id}: {owner_id} answers after another has taken it")
        journal = self.history.journal[shard_id]
        if len(journal) < revision or (revision and journal[revision - 1].epoch > epoch):
            self.violation(f"D1 shard {shard_id}: revision {revision} of epoch {epoch} is answered, not durable")

    def note_claims(self, claims: list[ShardClaim], replica_id: str) -> None:
        for claim in claims:
            former = [line for line in self.history.epochs if line[0] == claim.shard_id]
            if former and former[-1][2] == replica_id:
                self.sometimes("same replica takes a shard again")
            self.history.epochs.append((claim.shard_id, claim.epoch, replica_id, self.scheduler.now_ms))

    def note_owner(self, replica: SimulatedReplica, shard_id: int) -> None:
        former = [
            other.owned[shard_id].shard
            for other in self.replicas.values()
            if other is not replica and not other.dead and shard_id in other.owned
        ]
        if former:
            self.sometimes("two replicas believe that they own a shard")
        note_takeover(self.history, self.store.folded[shard_id])

    def check_join_phases(self, shard: Shard) -> None:
        """L3: between any two steps, no phase waits for its timeout once the calls that it waits for have come."""
        for group in shard.groups.values():
            if group.state is PREPARING_REBALANCE:
                for broken in check_join_phase(group):
                    self.violation(f"L3 {group.group_id}: {broken}")
            elif group.state is COMPLETING_REBALANCE:
                for broken in check_sync_phase(group):
                    self.violation(f"L3 {group.group_id}: {broken}")

    def compare_with_store(self, owned: OwnedShard) -> None:
        """S14 at random points: the live shard, the store's rows and the folded journal say the same."""
        self.check_join_phases(owned.shard)
        if not self.chance(0.04):
            return
        shard_id = owned.shard.shard_id
        journal = self.history.journal[shard_id]
        if not journal or journal[-1].epoch != owned.epoch or self.is_excused(shard_id):
            return
        names = self.store.on_the_way(shard_id)
        for difference in image_differences(owned.shard.image(), self.store.tables.load(shard_id), names):
            self.violation(f"S14 shard {shard_id}: {difference}")
        live, folded = (without_offsets(facts_of(each), names) for each in (owned.shard, self.store.folded[shard_id]))
        if live != folded:
            self.violation(f"S14 shard {shard_id}: live {live}, folded {folded}")

    def fenced_write(self, group: GroupKey, partition: int, held: Share) -> None:
        """The user's own data: it takes no token that is older than one it has seen."""
        key, token = (group, partition), held.token
        accepted = token >= self._tokens.get(key, 0)
        if accepted:
            self._tokens[key] = token
        else:
            self.sometimes("fenced resource refused an old token")
        self.history.effects.append(Effect(group, partition, token, accepted, self.scheduler.now_ms, held.member_id))

    @property
    def now_s(self) -> float:
        return self.scheduler.now_ms / 1000

    def note(self, actor: str, event: str, detail: object = "") -> None:
        """For the trace."""
        self.history.notes.append((self.scheduler.now_ms, actor, event, detail))

    def sometimes(self, situation: str) -> None:
        self.history.sometimes[situation] += 1

    def violation(self, text: str) -> None:
        if not self.is_over and len(self.history.violations) < 20:
            self.history.violations.append(f"{text} (at {self.scheduler.now_ms} ms)")
