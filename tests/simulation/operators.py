"""Operators that force rebalances, and clients that exceed the limits or send requests that no good client sends."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from rota.core.membership import MembershipSettings
from rota.protocol.errors import ErrorCode
from rota.protocol.limits import Limits
from rota.protocol.messages import (
    Act,
    CommitOffsets,
    DeleteOffsets,
    Heartbeat,
    HeartbeatMany,
    JoinGroup,
    JoinReply,
    LeaveGroup,
    LeavingMember,
    MemberHeartbeat,
    OffsetToCommit,
    Protocol,
    RebalanceGroup,
    Reply,
    Request,
    SyncGroup,
    TopicPartitions,
    VerifyFence,
)
from tests.simulation.beside import Beside
from tests.simulation.beside_checks import STRANGER
from tests.simulation.history import GroupKey
from tests.simulation.member import TOPIC
from tests.simulation.network import Client

if TYPE_CHECKING:
    from tests.simulation.world import World

PARTITION = 98
_TIMEOUT_MS = 1_000

Bad = tuple[Request, ErrorCode | None]
"""A request, and the error that is due in every state of its group; None where that depends on the group."""


class ForcedRebalances(Beside):
    """An operator has a group rebalance, or its leader step down."""

    name = "force_rebalance"
    every_ms = 1_200

    def act(self) -> None:
        group, steps_down = self.rng.choice(self.world.groups), self.rng.random() < 0.5
        act = Act("operator", "the console", "on purpose") if self.rng.random() < 0.5 else None
        request = RebalanceGroup(*group, "on purpose", steps_down, act)
        self.world.nemesis.ask(request, lambda reply: self._answered(reply, steps_down=steps_down))

    def _answered(self, reply: Reply | None, *, steps_down: bool) -> None:
        if reply is not None and reply.error is ErrorCode.NONE:
            self.world.sometimes("an operator asks the leader to step down" if steps_down else "a rebalance is forced")


class ExceededLimits(Beside):
    """Requests that break a limit: each is rejected with its code, and changes nothing."""

    name = "exceed_limit"
    every_ms = 100

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._client = Client(STRANGER)
        self._offset = 0

    def act(self) -> None:
        if self._client.exchanges:
            return  # One call at a time, so that its commits come in order.
        group = self.rng.choice(self.world.groups)
        alive = [m for m in self.world.nemesis.members() if m.group == group and m.is_live and m.core.member_id]
        bad = [*self._joins(group, self.world.limits), *self._nameless(), *self._of_unknown_member(group)]
        if alive:
            core = self.rng.choice(alive).core
            names = (core.member_id, core.settings.group_instance_id)
            bad += self._of_member(group, max(core.generation_id, 0), *names)
            bad += self._of_protocols(group, max(core.generation_id, 0), core.settings, *names)
        request, error = self.rng.choice(bad)
        self.world.network.call(self._client, request, _TIMEOUT_MS, lambda reply: self._answered(request, error, reply))

    def _joins(self, group: GroupKey, limits: Limits) -> list[Bad]:
        short, long = limits.min_session_timeout_ms - 1, limits.max_session_timeout_ms + 1
        protocols = (Protocol("even"),)
        wrong = ErrorCode.INVALID_SESSION_TIMEOUT
        return [
            (JoinGroup(*group, "worker", protocols, short, 2_000, client_id=STRANGER), wrong),
            (JoinGroup(*group, "worker", protocols, long, 2_000, client_id=STRANGER), wrong),
            # Full, or of another kind: the error depends on the group.
            (JoinGroup(*group, "worker", (Protocol("of no other"),), 2_000, 2_000, "nobody", client_id=STRANGER), None),
            (JoinGroup(*group, "", (), 2_000, 2_000, client_id=STRANGER), None),
            (JoinGroup(*group, "consumer", (Protocol("server:of no kind"),), 2_000, 2_000, client_id=STRANGER), None),
            # A newcomer that gets an id, and then comes back as a static member.
            (
                JoinGroup(*group, "worker", (Protocol("even"), Protocol("sticky")), 1_000, 2_000, client_id=STRANGER),
                None,
            ),
        ]

    def _nameless(self) -> list[Bad]:
        """The group has no name."""
        of, error = (self.world.groups[0][0], ""), ErrorCode.INVALID_GROUP_ID
        return [
            (JoinGroup(*of, "worker", (Protocol("even"),), 2_000, 2_000, client_id=STRANGER), error),
            (SyncGroup(*of, "nobody", 1), error),
            (Heartbeat(*of, "nobody", 1), error),
            (LeaveGroup(*of, ()), error),
            (RebalanceGroup(*of), error),
        ]

    def _of_unknown_member(self, group: GroupKey) -> list[Bad]:
        """By an id that no member ever has."""
        return [
            (SyncGroup(*group, "nobody", 1), ErrorCode.UNKNOWN_MEMBER_ID),
            (Heartbeat(*group, "nobody", 1), ErrorCode.UNKNOWN_MEMBER_ID),
            (HeartbeatMany(*group, (MemberHeartbeat("nobody", 1),)), None),
            (LeaveGroup(*group, (LeavingMember("nobody", None),)), None),
            (VerifyFence(*group, 1, "nobody"), None),
        ]

    def _of_protocols(
        self, group: GroupKey, generation_id: int, settings: MembershipSettings, member_id: str, instance_id: str | None
    ) -> list[Bad]:
        """Protocols that the group does not have; an instance id with an id that may still be pending."""
        kind, protocols = settings.protocol_type, settings.protocols
        return [
            (SyncGroup(*group, member_id, generation_id, instance_id, None, "of no other"), None),
            (JoinGroup(*group, kind, protocols, 2_000, 2_000, member_id, "of no member", STRANGER), None),
        ]

    def _of_member(self, group: GroupKey, generation_id: int, member_id: str, instance_id: str | None) -> list[Bad]:
        """Under a member's name: a commit with one entry that is too large, and heartbeats of several at once."""
        self._offset += 1
        large = "x" * (self.world.limits.offset_metadata_max_chars + 1)
        items = (
            OffsetToCommit(TOPIC, PARTITION, self._offset, metadata=f"exceeds/{self.world.next_commit()}"),
            OffsetToCommit(TOPIC, PARTITION + 100, 1, metadata=large),
        )
        beats = [
            MemberHeartbeat(member_id, generation_id, instance_id),
            MemberHeartbeat(member_id, generation_id + 1_000, instance_id),
            MemberHeartbeat(member_id, generation_id, "of no member" if instance_id == "i0" else "i0"),
        ]
        return [
            (CommitOffsets(*group, generation_id, items, member_id, instance_id), None),
            (HeartbeatMany(*group, (self.rng.choice(beats), MemberHeartbeat("nobody", generation_id))), None),
            # No member has been silent for as long as that.
            (LeaveGroup(*group, (LeavingMember(member_id, instance_id),), silent_for_ms=10_000_000), None),
            (VerifyFence(*group, generation_id, "nobody"), None),
            (DeleteOffsets(*group, (TopicPartitions(TOPIC, (PARTITION,)),)), None),
        ]

    def _come_back(self, request: JoinGroup, member_id: str) -> None:
        """With the id, as a static member, which is rejected; then the id is given back."""
        again = replace(request, member_id=member_id, group_instance_id="of no member")
        leaving = LeaveGroup(request.namespace, request.group_id, (LeavingMember(member_id),))

        def leave(reply: Reply | None) -> None:
            self._answered(again, None, reply)
            self.world.network.call(self._client, leaving, _TIMEOUT_MS, lambda _reply: None)

        self.world.network.call(self._client, again, _TIMEOUT_MS, leave)

    def _answered(self, request: Request, error: ErrorCode | None, reply: Reply | None) -> None:
        if reply is None or reply.error.name.startswith(("COORDINATOR", "NOT_COORDINATOR")):
            return
        if error is not None and reply.error is not error:
            self.world.violation(f"S18 {request} was answered {reply}, {error} is due")
        if isinstance(request, JoinGroup) and reply.error is ErrorCode.MEMBER_ID_REQUIRED:
            self._come_back(request, cast("JoinReply", reply).member_id)
