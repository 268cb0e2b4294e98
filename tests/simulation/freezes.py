"""Administrators that freeze groups and end freezes, and evictors that ask before a member leaves (ADR 64)."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from rota.protocol.errors import ErrorCode
from rota.protocol.messages import DrainMember, DrainReply, FreezeGroup, Reply
from tests.simulation.beside import Beside

if TYPE_CHECKING:
    from tests.simulation.history import GroupKey
    from tests.simulation.member import Member
    from tests.simulation.world import World

LONGEST_FREEZE_MS = 3_000
CLOCKS_DIFFER_MS = 2_000
"""At most, in worlds with freezes: the end of one is a time by its owner's clock, and the next owner has another."""
_GRANT_MS = (500, 4_000)


class Freezes(Beside):
    """Groups are frozen for a while; some freezes end early. Members ask for the permission to leave."""

    name = "freeze_group"
    every_ms = 700

    def act(self) -> None:
        group, whim = self.rng.choice(self.world.groups), self.rng.random()
        if whim < 0.45:
            self._ask_for_permission(group)
        else:
            for_ms = 0 if whim < 0.6 else self.rng.randint(300, LONGEST_FREEZE_MS)
            self.world.nemesis.ask(FreezeGroup(*group, for_ms, "deploy"), self._frozen)

    def _frozen(self, reply: Reply | None) -> None:
        if reply is not None and reply.error is ErrorCode.NONE:
            self.world.sometimes("an administrator freezes a group, or ends that")

    def _ask_for_permission(self, group: GroupKey) -> None:
        live = [m for m in self.world.nemesis.members() if m.group == group and m.is_live and m.core.member_id]
        if not live:
            return
        member, max_leaving = self.rng.choice(live), self.rng.choice((1, 1, 2))
        leaves = self.rng.random() < 0.6
        request = DrainMember(
            *group, member.core.member_id, member.group_instance_id, max_leaving, self.rng.choice(_GRANT_MS)
        )
        self.world.nemesis.ask(request, lambda reply: self._answered(member, reply, leaves=leaves))

    def _answered(self, member: Member, reply: Reply | None, *, leaves: bool) -> None:
        if reply is None or reply.error is not ErrorCode.NONE:
            return
        granted = cast("DrainReply", reply).granted
        self.world.sometimes("a member may leave" if granted else "a member may not leave yet")
        if granted and leaves and member.is_live and self.world.nemesis.active:
            member.leave()


def wait_for_their_end(world: World) -> None:
    """Let the time pass in which a freeze may still be in force."""
    if Freezes.name in world.parts.beside:
        last_ms = world.profile.safety_ms + LONGEST_FREEZE_MS + CLOCKS_DIFFER_MS
        world.scheduler.run_until(max(last_ms, world.scheduler.now_ms))
