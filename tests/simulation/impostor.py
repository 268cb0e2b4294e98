"""A client that acts under member ids, generations and instance ids that are not its own.

Its requests must be rejected, or are such as the member itself might have sent: it may renew the session of a member
that is alive, and commit progress of a partition that no member has. So no check has to make an exception for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rota.protocol.messages import (
    CommitOffsets,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    OffsetToCommit,
    Request,
    SyncGroup,
    VerifyFence,
)
from tests.simulation.history import GroupKey
from tests.simulation.member import TOPIC, Member
from tests.simulation.network import Client

if TYPE_CHECKING:
    from tests.simulation.world import World

ACTS_EVERY_MS = 300
NOT_YET = 1_000
"""So many generations ahead no group gets in a simulated world."""
PARTITION = 99
_TIMEOUT_MS = 1_000


class Impostor(Client):
    """One call at a time, so that its own commits come in order."""

    def __init__(self, world: World) -> None:
        super().__init__("impostor")
        self._world = world
        self._offset = 0

    def act_as_another(self) -> None:
        """Send one request under the name of a member that is alive."""
        group = self._world.rng.choice(self._world.groups)
        alive = [member for member in self._world.nemesis.members() if member.is_live and member.core.member_id]
        victims = [member for member in alive if member.group == group]
        if self.exchanges or not victims:
            return
        generation_id = max(member.core.generation_id for member in victims)
        newcomers = [member for member in victims if member.core.generation_id < 0]
        if newcomers and generation_id >= 0:
            self._world.sometimes("a newcomer's id comes with the current generation")
            self._send(self._as_newcomer(group, self._world.rng.choice(newcomers), max(generation_id, 0)))
        elif self._world.chance(0.2):
            self._send(self._commit(group, max(generation_id, 0), self._world.rng.choice(alive).core.member_id))
        else:
            self._send(self._as_member(group, self._world.rng.choice(victims), max(generation_id, 0)))

    def _as_newcomer(self, group: GroupKey, victim: Member, generation_id: int) -> Request:
        """A member that has joined only the next generation claims to be in this one."""
        member_id, instance_id = victim.core.member_id, victim.group_instance_id
        if self._world.chance(0.2):
            return VerifyFence(*group, generation_id, member_id)
        return self._commit(group, generation_id, member_id, instance_id)

    def _as_member(self, group: GroupKey, victim: Member, generation_id: int) -> Request:
        member_id, instance_id = victim.core.member_id, victim.group_instance_id
        other_id = "i0" if instance_id is None else "of no member"
        past, settings = max(0, generation_id - 1 - self._world.rng.randrange(2)), victim.core.settings
        times = (settings.session_timeout_ms, settings.rebalance_timeout_ms)
        acts: list[Request] = [
            self._commit(group, generation_id, member_id, instance_id),
            self._commit(group, generation_id, member_id, other_id),
            self._commit(group, generation_id, member_id, None),
            self._commit(group, past, member_id, instance_id),
            self._commit(group, generation_id + NOT_YET, member_id, instance_id),
            Heartbeat(*group, member_id, past, instance_id),
            Heartbeat(*group, member_id, generation_id + NOT_YET, instance_id),
            Heartbeat(*group, member_id, generation_id, other_id),
            SyncGroup(*group, member_id, generation_id + NOT_YET, instance_id, assignments=((member_id, b"0"),)),
            SyncGroup(*group, member_id, generation_id, other_id, assignments=((member_id, b"0"),)),
            LeaveGroup(*group, (LeavingMember(member_id, other_id),)),
            JoinGroup(*group, settings.protocol_type, settings.protocols, *times, member_id, other_id),
        ]
        return self._world.rng.choice(acts)

    def _commit(
        self, group: GroupKey, generation_id: int, member_id: str, group_instance_id: str | None = None
    ) -> CommitOffsets:
        self._offset += 1
        item = OffsetToCommit(TOPIC, PARTITION, self._offset, metadata=f"impostor/{self._world.next_commit()}")
        return CommitOffsets(*group, generation_id, (item,), member_id, group_instance_id)

    def _send(self, request: Request) -> None:
        self._world.network.call(self, request, _TIMEOUT_MS, lambda _reply: None)
