"""The source of faults: members that come and go, administrators, crashing replicas, cut networks, a slow store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import TYPE_CHECKING

from rota.protocol.ids import shard_of
from rota.protocol.messages import (
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    DescribeGroup,
    FetchOffsets,
    GetLeader,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    OffsetToCommit,
    Protocol,
    Reply,
    Request,
    TopicPartitions,
    VerifyFence,
)
from tests.simulation.beside import Beside, ClockSteps
from tests.simulation.freezes import Freezes
from tests.simulation.history import GroupKey, NemesisAct
from tests.simulation.impostor import ACTS_EVERY_MS, Impostor
from tests.simulation.journal_readers import Pruning
from tests.simulation.member import TOPIC, Member
from tests.simulation.network import Client
from tests.simulation.operators import ExceededLimits, ForcedRebalances
from tests.simulation.replica import SimulatedReplica
from tests.simulation.user_commits import UserTransactions

if TYPE_CHECKING:
    from tests.simulation.liveness import LivenessServer
    from tests.simulation.world import World

BESIDE: dict[str, type[Beside]] = {
    part.name: part for part in (ClockSteps, ExceededLimits, ForcedRebalances, Freezes, Pruning, UserTransactions)
}
FOR_EVER_MS = 10_000_000
_ONCE_EMPTY_MS = 150
MOST_BEHIND_MS = 1_000
"""How far a standby of the liveness store may be behind."""
SILENT_MS = 3_000
"""Longer than it takes to find another owner, shorter than the rest of a session."""
LATE_LEASE_MS = 150
FAULT_SHARE = 0.6
"""How likely a seed has each kind of fault at all."""


def kind_of(act: Callable[[], None]) -> str:
    """An act's name, as `Without` and the list of acts have it."""
    return act.__name__.lstrip("_")


def place_name(group: GroupKey, slot: int) -> str:
    return f"{group[1]}.{slot}"


class Nemesis:
    """Draws what happens next, from the world's one source of randomness."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.slots: dict[tuple[GroupKey, int], Member | None] = {
            (group, slot): None
            for group in world.groups
            for slot in range(world.profile.slots)
            if place_name(group, slot) not in world.without.names
        }
        self.elders: list[Member] = []
        """Those with a slot that another process has taken: dead, fenced, or not yet aware of it."""
        self.admin = Client("admin")
        self.active = True
        self.lost_replica_id = ""
        self._started = 0
        self._twins = Random(f"{world.seed}:twins")
        self._beside = [BESIDE[name](world) for name in sorted(world.parts.beside)]
        self._faults = [kind for kind in self._kinds() if world.chance(FAULT_SHARE)] or [self._crash_replica]

    def _kinds(self) -> list[Callable[[], None]]:
        """The faults that a seed draws from."""
        kinds = [*self._basic_kinds(), self._grant_leases_late, self._lose_answers, self._hand_over_slowly]
        if len(self.world.replica_ids) > 1:
            kinds += [self._cut_link, self._start_late]
        return [*kinds, *self._liveness_kinds()]

    def _basic_kinds(self) -> list[Callable[[], None]]:
        kinds: list[Callable[[], None]] = [
            self._crash_replica,
            self._pause_replica,
            self._cut_replica_off,
            self._cut_store_off,
            self._slow_store,
            self._stop_store,
            self._hand_over,
        ]
        if self.world.profile.churn_every_ms:
            kinds.append(self._cut_member_off)
        return kinds

    def members(self) -> Iterator[Member]:
        """All processes that were ever started, in order of the slots."""
        yield from self.elders
        yield from (member for member in self.slots.values() if member is not None)

    # --- the two phases --------------------------------------------------------------------------

    def start(self) -> None:
        world, profile = self.world, self.world.profile
        for group, slot in self.slots:
            if not profile.churn_every_ms or world.chance(0.6):
                world.scheduler.after(int(world.rng.random() * 800), None, self._start_member, group, slot)
        if not profile.churn_every_ms:
            world.troublesome = False
        self._again(profile.churn_every_ms, self._churn)
        self._again(profile.admin_every_ms, self._administer)
        if world.is_unruly:
            self._again(ACTS_EVERY_MS, Impostor(world).act_as_another)
        for part in self._beside:
            part.start()
        if profile.quiet_ms:
            world.network.faulty = world.store.faulty = False
        world.scheduler.after(profile.quiet_ms, None, self._start_faults)

    def _start_faults(self) -> None:
        self.world.network.faulty = self.world.store.faulty = True
        self._again(self.world.profile.fault_every_ms, self._fault)
        if self.world.parts.sluggish:
            self._again(1_500, self._lose_answers)
        if self.world.parts.long_sessions:
            self._start_faults_of_sessions()

    def _start_faults_of_sessions(self) -> None:
        """What shared sessions are for. Not all of it in each world: an owner that dies hides what a cut would show."""
        acts = [self._cut_link, self._lose_member_and_owner, self._lose_owner_of_silent_members]
        if not self.world.parts.calm:
            acts.append(self._lose_liveness_and_owner)
        for act in [act for act in acts if self.world.chance(0.5)] or acts[:1]:
            self._again(4_000, act)

    def stop(self) -> None:
        """From here on there are no faults; dead processes stay dead, except for replicas."""
        self.active = False
        for part in self._beside:
            part.stop()
        self.world.troublesome = False
        self.world.network.faulty = False
        self.world.network.cut_to.clear()
        self.world.network.cut_from.clear()
        self.world.store.faulty = False
        self.world.store.down_until_ms = 0
        self.world.cut_links.clear()
        if self.world.liveness is not None:
            self.world.liveness.away_until_ms = self.world.liveness.slow_until_ms = 0
        for replica in self.world.replicas.values():
            replica.cut_off_from_store_until_ms = 0
        if len(self.world.replicas) > 1 and self.world.chance(0.3):
            self._lose_one_for_good()

    def _lose_one_for_good(self) -> None:
        """L8: whatever ails one replica for ever, the groups go on with the others."""
        replica = self._some_replica()
        match self.world.rng.randrange(3):
            case 0:
                replica.crash()
                self.lost_replica_id = replica.replica_id
            case 1:
                replica.paused_until_ms = FOR_EVER_MS
            case _:
                replica.cut_off_from_store_until_ms = FOR_EVER_MS
        self.world.sometimes("peace without one of the replicas")

    def _again(self, every_ms: int, act: Callable[[], None]) -> None:
        if every_ms and self.active:
            delay_ms = 1 + int(self.world.rng.expovariate(1 / every_ms))
            self.world.scheduler.after(delay_ms, None, self._act, every_ms, act)

    def _act(self, every_ms: int, act: Callable[[], None]) -> None:
        if self.active:
            if act == self._fault or self.may(kind_of(act)):
                act()
            self._again(every_ms, act)

    def _fault(self) -> None:
        fault = self.world.rng.choice(self._faults)
        if self.may(kind_of(fault)):
            fault()

    def may(self, kind: str) -> bool:
        """Number and note an act that is due; False where this world leaves it out."""
        without, acts = self.world.without, self.world.history.acts
        is_left_out = kind in without.names or len(acts) in without.acts
        acts.append(NemesisAct(self.world.scheduler.now_ms, kind, is_left_out))
        return not is_left_out

    # --- members ---------------------------------------------------------------------------------

    def _start_member(self, group: GroupKey, slot: int) -> None:
        if not self.active:
            return
        former = self.slots[(group, slot)]
        if former is not None:
            self.elders.append(former)
        instance_id = f"i{slot}" if slot < self.world.profile.static_slots else None
        self._started += 1
        name = f"{group[1]}.{slot}.{self._started}"
        self.slots[(group, slot)] = Member(self.world, name, group, instance_id)

    def _churn(self) -> None:
        world = self.world
        if not self.slots:
            return
        (group, slot), member = world.rng.choice(list(self.slots.items()))
        if member is None or not member.is_live:
            self._start_member(group, slot)
            return
        whim = world.rng.random()
        if whim < 0.04:
            self._retire(group)
        elif whim < 0.2:
            member.leave()
        elif whim < 0.4:
            self._crash_member(member)
        elif whim < 0.6:
            until_ms = world.scheduler.now_ms + int(world.rng.random() * 3_500)
            member.paused_until_ms = max(member.paused_until_ms, until_ms)
        elif whim < 0.7:
            member.change_metadata()
        elif whim < 0.85:
            self._restart(group, slot, member)
        else:
            self._resync(group)

    def _crash_member(self, member: Member) -> None:
        if self.world.chance(0.5):
            self.world.network.cut_from[member.name] = self.world.scheduler.now_ms + 1_000_000
            # Its host is gone: no peer even learns that the connections are closed.
        member.crash()

    def _restart(self, group: GroupKey, slot: int, member: Member) -> None:
        """A process is replaced at once; a static one sometimes while the old one still runs."""
        if member.group_instance_id is None or self.world.chance(0.5):
            member.crash()
        else:
            self.world.sometimes("static member started twice")
            self._cut_predecessor_off(member)
        self._start_member(group, slot)
        if member.group_instance_id is not None and self.world.chance(0.4):
            self.world.scheduler.after(300, None, self._resync, group)

    def _cut_predecessor_off(self, member: Member) -> None:
        """In half of the cases it does not learn that another process has its instance id, and works on."""
        if self._twins.random() < 0.5:
            network, until_ms = self.world.network, self.world.scheduler.now_ms + int(self._twins.random() * 6_000)
            network.cut_to[member.name] = network.cut_from[member.name] = until_ms
            self.world.sometimes("a predecessor was cut off from its successor")

    def _retire(self, group: GroupKey) -> None:
        """All members leave, and the group is deleted; the next one to join makes it anew."""
        for member in list(self.members()):
            if member.group == group and member.is_live:
                member.leave()
        if self.world.is_unruly:
            self.world.scheduler.after(_ONCE_EMPTY_MS, None, self._sweep, group)
        for delay_ms in (200, 600):
            self.world.scheduler.after(delay_ms, None, self.ask, DeleteGroup(*group))

    def _sweep(self, group: GroupKey) -> None:
        """Clean up where a group has just become Empty: offsets that it committed long ago must stay."""
        for replica in self.world.replicas.values():
            if shard_of(*group, self.world.profile.shards) in replica.owned and not replica.dead:
                self.world.sometimes("swept where a group has just become Empty")
                replica.sweep()

    def _resync(self, group: GroupKey) -> None:
        if not self.active:
            return
        for member in self.members():
            if member.group == group and member.is_live and member.resync():
                self.world.sometimes("resync asked for")
                return

    def _cut_member_off(self) -> None:
        live = [member for member in self.members() if member.is_live]
        if live:
            self._cut(self.world.rng.choice(live).name)

    # --- administrators --------------------------------------------------------------------------

    def _administer(self) -> None:
        world = self.world
        if world.chance(0.15):
            world.rng.choice(list(world.replicas.values())).sweep()
            return
        self.ask(self._admin_request())

    def ask(self, request: Request, done: Callable[[Reply | None], None] = lambda _reply: None) -> None:
        """Have an administrator send a request."""
        self.admin.owner_of.clear()
        self.world.network.call(self.admin, request, 2_000, done)

    def _admin_request(self) -> Request:
        world = self.world
        group = world.rng.choice(world.groups)
        known = [member.core for member in self.members() if member.group == group and member.core.member_id]
        someone = world.rng.choice(known) if known else None
        reads: list[Request] = [DescribeGroup(*group), GetLeader(*group), FetchOffsets(*group)]
        if someone is not None:
            reads.append(VerifyFence(*group, someone.generation_id, someone.member_id))
        if not world.troublesome or world.chance(0.6):
            return world.rng.choice(reads)
        writes: list[Request] = [
            DeleteGroup(*group),
            CommitOffsets(*group, -1, (OffsetToCommit(TOPIC, 0, 0, metadata=f"reset/{world.next_commit()}"),)),
            DeleteOffsets(*group, (TopicPartitions(TOPIC, (0, 1)),)),
            JoinGroup(*group, "stranger", (Protocol("even"),), 2_000, 2_000, group_instance_id="stranger"),
            JoinGroup(*group, "stranger", (Protocol("even"),), 2_000, 2_000, member_id="nobody"),
        ]
        if someone is not None:
            instance_id = someone.settings.group_instance_id
            by_instance = instance_id is not None and world.chance(0.5)
            leaving = LeavingMember("" if by_instance else someone.member_id, instance_id, "removed")
            writes.append(LeaveGroup(*group, (leaving,), by_admin=True))
        return world.rng.choice(writes)

    # --- the machinery ---------------------------------------------------------------------------

    def _some_replica(self) -> SimulatedReplica:
        """Mostly one that owns something: the others' troubles matter less."""
        replicas = list(self.world.replicas.values())
        owners = [replica for replica in replicas if replica.owned]
        return self.world.rng.choice(owners if owners and self.world.chance(0.8) else replicas)

    def _crash_replica(self) -> None:
        replica = self._some_replica()
        if not replica.dead:
            replica.crash()
            self.start_again(replica)

    def start_again(self, replica: SimulatedReplica) -> None:
        """Another incarnation comes after a while."""
        back_ms = 50 + int(self.world.rng.random() * 2_500)
        self.world.scheduler.after(back_ms, None, self.start_replica, replica.replica_id)

    def start_replica(self, replica_id: str) -> None:
        """A process takes the place of one that has ended, unless that one is lost for good."""
        if replica_id == self.lost_replica_id:
            return
        self.world.replicas[replica_id] = self.world.new_replica(replica_id)

    def _pause_replica(self) -> None:
        replica = self._some_replica()
        replica.paused_until_ms = max(replica.paused_until_ms, self.world.scheduler.now_ms + self._while_ms())

    def _cut_replica_off(self) -> None:
        self._cut(self._some_replica().replica_id)

    def _cut(self, name: str) -> None:
        network, until_ms = self.world.network, self.world.scheduler.now_ms + self._while_ms()
        direction = self.world.rng.random()
        if direction < 0.6:
            network.cut_to[name] = until_ms
        if direction > 0.4:
            network.cut_from[name] = until_ms

    def _cut_store_off(self) -> None:
        self._some_replica().cut_off_from_store_until_ms = self.world.scheduler.now_ms + self._while_ms()

    def _slow_store(self) -> None:
        self.world.store.slow_until_ms = self.world.scheduler.now_ms + self._while_ms()

    def _stop_store(self) -> None:
        self.world.store.down_until_ms = self.world.scheduler.now_ms + self._while_ms()

    def _hand_over(self) -> None:
        replica = self._some_replica()
        if not replica.dead:
            replica.hand_over()

    def _while_ms(self) -> int:
        """How long a fault lasts: mostly around the length of a lease."""
        return 50 + int(self.world.rng.random() * 2 * self.world.profile.lease_ms)

    # --- replicas among themselves ---------------------------------------------------------------

    def _cut_link(self) -> None:
        """Two replicas cannot reach each other, while clients reach both."""
        used = self._used_links()
        if used:
            member, one, other = self.world.rng.choice(used)
            if self.world.parts.calm:
                self._remove_soon(member)
        else:
            one, other = self.world.rng.sample(self.world.replica_ids, 2)
        until_ms = self.world.scheduler.now_ms + self._while_ms() + self.world.profile.session_ms[1]
        self.world.cut_links[frozenset((one, other))] = until_ms
        self.world.sometimes("link between two replicas cut")

    def _remove_soon(self, member: Member) -> None:
        """An administrator removes a member, which reaches only a replica that its owner does not reach."""
        leaving = LeavingMember(member.core.member_id, None, "removed")
        self.world.scheduler.after(300, None, self.ask, LeaveGroup(*member.group, (leaving,), by_admin=True))
        self.world.sometimes("member removed behind a link that is cut")

    def _used_links(self) -> list[tuple[Member, str, str]]:
        """Members with the replica that forwards their calls, and the one that it forwards them to."""
        owners = {shard_id: each.replica_id for each in self.world.replicas.values() for shard_id in each.owned}
        shards = self.world.profile.shards
        return [
            (member, forwarder, owners[shard_id])
            for member in self.members()
            for shard_id, forwarder in member.owner_of.items()
            if member.is_live
            and owners.get(shard_id, forwarder) != forwarder
            and shard_of(*member.group, shards) == shard_id
        ]

    def _lose_member_and_owner(self) -> None:
        """A member dies, and before its session ends so does the owner of its shard."""
        world = self.world
        live = [member for member in self.members() if member.is_live and member.core.member_id]
        if live:
            member = world.rng.choice(live)
            self._crash_member(member)
            delay_ms = int(world.profile.session_ms[0] * world.rng.uniform(0.5, 0.9))
            world.scheduler.after(delay_ms, None, self._crash_owner, shard_of(*member.group, world.profile.shards))

    def _crash_owner(self, shard_id: int) -> None:
        owner = next((each for each in self.world.replicas.values() if not each.dead and shard_id in each.owned), None)
        if self.active and owner is not None:
            owner.crash()
            self.world.sometimes("owner died when it mattered")
            self.start_again(owner)

    def _lose_liveness_and_owner(self) -> None:
        """The liveness store is away for a while; about when it is back, an owner dies."""
        self._stop_liveness()
        away_ms = int(self.world.profile.session_ms[0] * self.world.rng.uniform(0.4, 0.9))
        self._liveness.away_until_ms = self.world.scheduler.now_ms + away_ms
        delay_ms = away_ms + int(self.world.rng.uniform(-200, 1_500))
        self.world.scheduler.after(delay_ms, None, self._lose_owner_of_silent_members)

    def _lose_owner_of_silent_members(self) -> None:
        """An owner dies, and its members do not reach the next one before that has counted the sessions it read."""
        world, shard_id = self.world, self.world.rng.randrange(self.world.profile.shards)
        for member in self.members():
            if self.active and member.is_live and shard_of(*member.group, world.profile.shards) == shard_id:
                member.paused_until_ms = max(member.paused_until_ms, world.scheduler.now_ms + SILENT_MS)
        self._crash_owner(shard_id)

    # --- the liveness store ----------------------------------------------------------------------

    def _liveness_kinds(self) -> list[Callable[[], None]]:
        if self.world.liveness is None:
            return []
        return [self._stop_liveness, self._flush_liveness, self._slow_liveness, self._set_liveness_back]

    def _stop_liveness(self) -> None:
        until_ms = self._liveness_fails("away")
        self._liveness.away_until_ms = until_ms

    def _slow_liveness(self) -> None:
        until_ms = self._liveness_fails("slow")
        self._liveness.slow_until_ms = until_ms

    def _flush_liveness(self) -> None:
        self._liveness_fails("flushed")
        self._liveness.forget()

    def _set_liveness_back(self) -> None:
        """Its standby takes over, which is up to a second behind."""
        self._liveness_fails("set back")
        self._liveness.keep_copy()
        delay_ms = int(self.world.rng.random() * MOST_BEHIND_MS)
        self.world.scheduler.after(delay_ms, None, self._liveness.go_back)

    def _liveness_fails(self, how: str) -> int:
        now_ms = self.world.scheduler.now_ms
        until_ms = now_ms + self._while_ms()
        self.world.sometimes(f"liveness store {how}")
        self._liveness.faults_ms.append((now_ms, max(until_ms, now_ms + MOST_BEHIND_MS)))
        return until_ms

    @property
    def _liveness(self) -> LivenessServer:
        assert self.world.liveness is not None
        return self.world.liveness

    # --- a store and replicas that are late ---------------------------------------------------------

    def _grant_leases_late(self) -> None:
        self.world.late_leases_until_ms = self.world.scheduler.now_ms + self._while_ms()

    def on_lease(self, replica: SimulatedReplica, took_ms: int) -> None:
        """A lease that was granted late may be the last one: the owner must stop by its own clock."""
        if self.active and took_ms >= LATE_LEASE_MS and self.world.chance(0.6):
            lease_ms = self.world.profile.lease_ms
            replica.cut_off_from_store_until_ms = self.world.scheduler.now_ms + 2 * lease_ms
            # The others must be quick to take over.
            self.world.store.slow_until_ms = self.world.late_leases_until_ms = 0
            self.world.sometimes("cut off from the store after a lease that was granted late")

    def _lose_answers(self) -> None:
        """What replicas write lands, but the answers do not arrive: every outcome is unknown."""
        until_ms = self.world.scheduler.now_ms + int(self.world.rng.random() * self.world.profile.lease_ms / 2)
        for replica in self.world.replicas.values():
            if self.world.chance(0.5):
                replica.deaf_to_store_until_ms = until_ms
                self.world.sometimes("answers of the store lost")

    def _hand_over_slowly(self) -> None:
        """A replica stops while the store is slow: some of its decisions are not durable in time."""
        self.world.store.slow_until_ms = self.world.scheduler.now_ms + self._while_ms()
        self._hand_over()

    def _start_late(self) -> None:
        """A replica comes back while the store is slow: the others hand shards over to it."""
        replica = self._some_replica()
        if not replica.dead:
            replica.crash()
            delay_ms = 200 + int(self.world.rng.random() * 3 * self.world.profile.lease_ms)
            self.world.scheduler.after(delay_ms, None, self._start_slowly, replica.replica_id)

    def _start_slowly(self, replica_id: str) -> None:
        if self.active:
            self.world.store.slow_until_ms = self.world.scheduler.now_ms + 2 * self.world.profile.lease_ms
        self.start_replica(replica_id)
