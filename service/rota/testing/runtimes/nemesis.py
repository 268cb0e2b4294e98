"""The simulator's faults, and those of parts that only the production runtime has: the liveness store."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rota.protocol.ids import shard_of
from rota.protocol.messages import (
    CommitOffsets,
    Heartbeat,
    LeaveGroup,
    LeavingMember,
    OffsetToCommit,
    Request,
    SyncGroup,
    VerifyFence,
)
from rota.testing.member import TOPIC
from rota.testing.nemesis import Nemesis
from rota.testing.replicas import ReplicaProcess

if TYPE_CHECKING:
    from rota.testing.runtimes.liveness import LivenessServer
    from rota.testing.runtimes.world import RuntimeWorld


LATE_LEASE_MS = 150
MOST_BEHIND_MS = 1_000
"""How far a standby of the liveness store may be behind."""


class RuntimeNemesis(Nemesis):
    """Draws what happens next in a `RuntimeWorld`."""

    world: RuntimeWorld

    def _kinds(self) -> list[Callable[[], None]]:
        kinds = [*super()._kinds(), self._grant_leases_late, self._lose_answers, self._hand_over_slowly]
        if len(self.world.replica_ids) > 1:
            kinds += [self._cut_link, self._start_late]
        if self.world.liveness is not None:
            kinds += [self._stop_liveness, self._flush_liveness, self._slow_liveness, self._set_liveness_back]
        return kinds

    def _start_faults(self) -> None:
        super()._start_faults()
        if self.world.shares_long_sessions:
            self._again(4_000, self._cut_link)
            self._again(5_000, self._lose_member_and_owner)
        if self.world.is_sluggish:
            self._again(1_500, self._lose_answers)

    def stop(self) -> None:
        super().stop()
        self.world.cut_links.clear()
        if self.world.liveness is not None:
            self.world.liveness.away_until_ms = self.world.liveness.slow_until_ms = 0

    def _lose_one_for_good(self) -> None:
        if len(self.world.replicas) > 1:
            super()._lose_one_for_good()

    # --- impostors ---------------------------------------------------------------------------------

    def _admin_request(self) -> Request:
        if not self.world.troublesome or self.world.chance(0.6):
            return super()._admin_request()
        return self._impostor_request()

    def _impostor_request(self) -> Request:
        """A call with an id, a generation or an instance id that is not the caller's: it must change nothing."""
        world = self.world
        group = world.rng.choice(world.groups)
        known = [member for member in self.members() if member.core.member_id]
        if not known:
            return super()._admin_request()
        world.sometimes("an impostor calls")
        core = world.rng.choice(known).core
        is_elsewhere = (core.settings.namespace, core.settings.group_id) != group
        member_id = core.member_id if is_elsewhere or world.chance(0.5) else "nobody"
        is_past = member_id == core.member_id and not is_elsewhere
        # Never a negative one: with that, any client may commit in a group without members.
        generation_id = max(0, core.generation_id - 1 if is_past else core.generation_id)
        commit = OffsetToCommit(TOPIC, 0, 0, metadata=f"false/{world.next_commit()}")
        wrong: list[Request] = [
            Heartbeat(*group, member_id, generation_id),
            Heartbeat(*group, member_id, generation_id, group_instance_id="of another member"),
            SyncGroup(*group, member_id, generation_id + 1_000, assignments=((member_id, b"0"),)),
            CommitOffsets(*group, generation_id, (commit,), member_id),
            LeaveGroup(*group, (LeavingMember("nobody", None, "not there"),)),
            VerifyFence(*group, generation_id, member_id),
        ]
        return world.rng.choice(wrong)

    # --- the store and the network ------------------------------------------------------------------

    def _grant_leases_late(self) -> None:
        self.world.late_leases_until_ms = self.world.scheduler.now_ms + self._while_ms()

    def on_lease(self, replica: ReplicaProcess, took_ms: int) -> None:
        """A lease that was granted late may be the last one: the owner must stop by its own clock."""
        if self.active and took_ms >= LATE_LEASE_MS and self.world.chance(0.6):
            lease_ms = self.world.profile.lease_ms
            replica.cut_off_from_store_until_ms = self.world.scheduler.now_ms + 2 * lease_ms
            self.world.store.slow_until_ms = self.world.late_leases_until_ms = (
                0  # The others must be quick to take over.
            )
            self.world.sometimes("cut off from the store after a lease that was granted late")

    def _lose_answers(self) -> None:
        """What replicas write lands, but the answers do not arrive: every outcome is unknown."""
        until_ms = self.world.scheduler.now_ms + int(self.world.rng.random() * self.world.profile.lease_ms / 2)
        for replica in self.world.replicas.values():
            if self.world.chance(0.5):
                replica.deaf_to_store_until_ms = until_ms
                self.world.sometimes("answers of the store lost")

    def _hand_over_slowly(self) -> None:
        """A replica stops while the store is slow: some of what it has decided is not durable in time."""
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

    def _cut_link(self) -> None:
        """Two replicas cannot reach each other, while clients reach both."""
        one, other = self._used_link() or self.world.rng.sample(self.world.replica_ids, 2)
        until_ms = self.world.scheduler.now_ms + self._while_ms() + self.world.profile.session_ms[1]
        self.world.cut_links[frozenset((one, other))] = until_ms
        self.world.sometimes("link between two replicas cut")

    def _used_link(self) -> tuple[str, str] | None:
        """Two replicas, one of which forwards the calls of some member to the other."""
        owners = {shard_id: each.replica_id for each in self.world.replicas.values() for shard_id in each.owned}
        shards = self.world.profile.shards
        used = [
            (forwarder, owners[shard_id])
            for member in self.members()
            for shard_id, forwarder in member.owner_of.items()
            if member.is_live
            and owners.get(shard_id, forwarder) != forwarder
            and shard_of(*member.group, shards) == shard_id
        ]
        return self.world.rng.choice(used) if used else None

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
            self.world.sometimes("owner died after a member")
            self.world.restart(owner.replica_id)

    # --- the liveness store ----------------------------------------------------------------------

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
