"""The simulator's faults, and those that only the production runtime meets."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

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
    from rota.testing.runtimes.world import RuntimeWorld


LATE_LEASE_MS = 150


class RuntimeNemesis(Nemesis):
    """Draws what happens next in a `RuntimeWorld`."""

    world: RuntimeWorld

    def _kinds(self) -> list[Callable[[], None]]:
        kinds = [*self._basic_kinds(), self._grant_leases_late, self._lose_answers, self._hand_over_slowly]
        if len(self.world.replica_ids) > 1:
            kinds += [self._cut_link, self._start_late]
        return [*kinds, *self._liveness_kinds()]

    def _start_faults(self) -> None:
        super()._start_faults()
        if self.world.is_sluggish:
            self._again(1_500, self._lose_answers)

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
