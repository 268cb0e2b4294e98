"""A simulated member: joins, assigns with the real strategies, commits, and suffers faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rota.core.assignors import TopicPartition, assign
from rota.core.types.consumer import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    CommitOffsets,
    CommitReply,
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    JoinReply,
    LeaveGroup,
    LeavingMember,
    OffsetToCommit,
    Protocol,
    Reply,
    SyncGroup,
    SyncReply,
)
from rota.testing.scheduler import Process

if TYPE_CHECKING:
    from rota.demo.workload.fleet import GroupPlan
    from rota.demo.workload.shard import ShardWorld

COOPERATIVE = "cooperative-sticky"
_STARTS_OVER = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID})


class PlayedMember(Process):
    """One process of a group. Its heartbeats are parked until a change, as the SDK's are, so that few are sent."""

    def __init__(self, world: ShardWorld, plan: GroupPlan, number: int) -> None:
        super().__init__()
        self.world = world
        self.plan = plan
        self.instance_id = f"{plan.group_id}-{number}" if plan.static else None
        self.client_id = f"{plan.group_id}-{number}"
        self.member_id = ""
        self.generation_id = -1
        self.life = 0
        """Increased when pending callbacks of this member become invalid: it has left, or joins again."""
        self.share: tuple[TopicPartition, ...] = ()
        self.reason = ""
        self.working = False
        """True between an assignment and the next join."""

    # --- start and stop ---------------------------------------------------------------------------

    def start(self, reason: str = "") -> None:
        self.dead, self.member_id, self.share, self.reason = False, "", (), reason
        self._join()

    def leave(self, reason: str) -> None:
        """Stop in order: a dynamic member leaves the group, a static one will return within its session."""
        self.life += 1
        if self.member_id and self.instance_id is None:
            gone = LeavingMember(self.member_id, reason=reason)
            self.world.send(LeaveGroup("default", self.plan.group_id, (gone,)), self, lambda _reply: None)
        self.dead = True

    def crash(self) -> None:
        self.life += 1
        self.dead = True

    def resume(self, life: int) -> None:
        """Continue after a call failed because the group has a new owner; join if a join was in progress."""
        if life != self.life:
            return
        if self.member_id and self.working:
            self._beat(life)
            if self.share and self.plan.commit_every_ms:
                self.world.later(self._pause_between_commits(), self, self._commit, life)
        else:
            self._join()

    # --- joining ----------------------------------------------------------------------------------

    def _join(self) -> None:
        self.life += 1
        self.working = False
        self.world.send(self._join_request(), self, self._of_this_life(self._joined))

    def _join_request(self) -> JoinGroup:
        plan = self.plan
        owned = self.share if plan.strategy in ("sticky", COOPERATIVE) else ()
        subscription = Subscription((plan.group_id,), None, owned, self.generation_id)
        metadata = encode_subscription(subscription) if plan.strategy else b""
        return JoinGroup(
            "default",
            plan.group_id,
            "consumer" if plan.strategy else "leader",
            (Protocol(plan.strategy or "single", metadata),),
            plan.session_timeout_ms,
            60_000,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            client_id=self.client_id,
            host=f"10.0.{self.world.shard_id}.{self.plan.members}",
            reason=self.reason,
            new_member_id=self.world.new_member_id(self.client_id),
        )

    def _joined(self, reply: Reply) -> None:
        assert isinstance(reply, JoinReply)
        if reply.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = reply.member_id
            self._join()
        elif reply.error is not ErrorCode.NONE:
            self._start_over(reply.error)
        else:
            self.member_id, self.generation_id, self.reason = reply.member_id, reply.generation_id, ""
            leads = reply.leader_id == self.member_id and not reply.skip_assignment
            shares = self._assign(reply) if leads else ()
            self.world.later(
                self.world.latency() if not leads else self.world.think(), self, self._sync, self.life, shares
            )

    def _assign(self, reply: JoinReply) -> tuple[tuple[str, bytes], ...]:
        """Compute the assignment as the SDK's leader does, with the service's own strategies."""
        if not self.plan.strategy:
            return ((self.member_id, b"leader"),)
        members = [
            decode_subscription(each.metadata).of_member(each.member_id, each.group_instance_id)
            for each in reply.members
        ]
        shares = assign(self.plan.strategy, {self.plan.group_id: self.plan.partitions}, members)
        return tuple((m, encode_assignment(Assignment(tuple(share)))) for m, share in shares.items())

    def _sync(self, life: int, shares: tuple[tuple[str, bytes], ...]) -> None:
        if life == self.life:
            request = SyncGroup(
                "default", self.plan.group_id, self.member_id, self.generation_id, self.instance_id, assignments=shares
            )
            self.world.send(request, self, self._of_this_life(self._synced))

    def _synced(self, reply: Reply) -> None:
        assert isinstance(reply, SyncReply)
        if reply.error is not ErrorCode.NONE:
            self._start_over(reply.error)
            return
        self.working = True
        former = self.share
        self.share = decode_assignment(reply.assignment).partitions if self.plan.strategy else ()
        if self.plan.strategy == COOPERATIVE and not set(former) <= set(self.share):
            # Revoked partitions may be assigned now, in a second join phase.
            self.world.later(self.world.latency(), self, self._rejoin, self.life, "gave up partitions")
        self._beat(self.life)
        if self.share and self.plan.commit_every_ms:
            self.world.later(self._pause_between_commits(), self, self._commit, self.life)

    # --- working ----------------------------------------------------------------------------------

    def _beat(self, life: int) -> None:
        if life != self.life:
            return
        wait_ms = int(self.plan.session_timeout_ms / 2.5)
        request = Heartbeat(
            "default", self.plan.group_id, self.member_id, self.generation_id, self.instance_id, wait_ms
        )
        self.world.send(request, self, self._of_this_life(self._received), wait_ms=wait_ms)

    def _received(self, reply: Reply) -> None:
        assert isinstance(reply, HeartbeatReply)
        if reply.error is ErrorCode.NONE:
            self.world.later(self.world.latency(), self, self._beat, self.life)
        elif reply.error is ErrorCode.REBALANCE_IN_PROGRESS:
            self.world.later(self.world.latency(), self, self._rejoin, self.life, "")
        else:
            self._start_over(reply.error)

    def _commit(self, life: int) -> None:
        if life != self.life or not self.share:
            return
        offsets = tuple(
            OffsetToCommit(topic, partition, self.world.progress(self.plan.group_id, partition))
            for topic, partition in self.share[:4]
        )
        request = CommitOffsets(
            "default", self.plan.group_id, self.generation_id, offsets, self.member_id, self.instance_id
        )
        self.world.send(request, self, self._of_this_life(self._committed))

    def _committed(self, reply: Reply) -> None:
        assert isinstance(reply, CommitReply)
        if reply.error in _STARTS_OVER:
            self._start_over(reply.error)
        else:
            self.world.later(self._pause_between_commits(), self, self._commit, self.life)

    def _pause_between_commits(self) -> int:
        return int(self.plan.commit_every_ms * (0.5 + self.world.rng.random()))

    def _rejoin(self, life: int, reason: str) -> None:
        if life == self.life:
            self.reason = reason
            self._join()

    def _start_over(self, error: ErrorCode) -> None:
        """Join again after a pause: the member was removed, or the group moves to another owner."""
        if error in _STARTS_OVER:
            self.member_id, self.share, self.generation_id = "", (), -1
        self.life += 1
        self.world.later(self.world.think(), self, self._rejoin, self.life, "")

    def _of_this_life(self, handle: Callable[[Reply], None]) -> Callable[[Reply], None]:
        """Wrap `handle` so that it ignores an answer to a request of an earlier life."""
        life = self.life

        def answered(reply: Reply) -> None:
            if life == self.life and not self.dead:
                handle(reply)

        return answered
