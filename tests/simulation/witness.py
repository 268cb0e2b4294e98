"""What the checks see from inside of a simulated replica: each step of its shards, and each answer that leaves it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec.structs import replace

from rota.core.group.state import Result, Timer, TimerKind
from rota.core.replica.forwarding import Submitted
from rota.core.replica.going_back import Setback
from rota.core.replica.owned_shard import NOT_AVAILABLE, Now, OwnedShard, Ready
from rota.core.replica.ports import Answer, Cancel, JournalEvent
from rota.core.types.leader import PROTOCOL_TYPE as LEADER_TYPE
from rota.protocol.causes import MEMBER_ENDS
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    GetLeader,
    GetTopic,
    Heartbeat,
    HeartbeatMany,
    JoinGroup,
    ListTopics,
    Request,
)
from rota.server.runtime.coordinator import LocalCoordinator
from rota.server.runtime.telemetry import Telemetry
from tests.simulation.history import Stall
from tests.simulation.invariants import check_group

if TYPE_CHECKING:
    from tests.simulation.replica import SimulatedReplica
    from tests.simulation.world import World


class WatchedShard(OwnedShard):
    """A shard of which each step is checked as it is decided."""

    world: World
    _decided: set[int]
    """Calls of which the reply is decided."""
    _ends_join_phase = False
    """Whether the step under way is that of a join phase's timeout."""

    def watch(self, world: World) -> None:
        self.world = world
        self._decided = set()

    def unpark(self, number: int, now: Now) -> Ready:
        request = self._waiting.get(number)
        ready = super().unpark(number, now)
        if number in self._waiting and number not in self._decided:
            self.world.violation(f"L6 {request} is neither answered nor parked")
        return ready

    def on_timer(self, timer: Timer, now: Now) -> Ready:
        with self._at(timer):
            return super().on_timer(timer, now)

    def others_answered(self, timer: Timer, seen_ms_ago: int | None, now: Now) -> Ready:
        with self._at(timer):
            ready = super().others_answered(timer, seen_ms_ago, now)
        if seen_ms_ago is not None and ready.decided is not None and not ready.decided.records:
            self.world.sometimes("another replica had seen a member whose session was over")
        return ready

    @contextmanager
    def _at(self, timer: Timer) -> Iterator[None]:
        self._ends_join_phase = timer.kind is TimerKind.JOIN
        yield
        self._ends_join_phase = False

    def drop(self, reason: str, code: ErrorCode = NOT_AVAILABLE, *, undecided: bool = False) -> Ready:
        ready = super().drop(reason, code, undecided=undecided)
        for number, answer in ready.replies:
            if answer.reply.error is ErrorCode.NOT_COORDINATOR and number in self._decided:
                self.world.violation(f"D1 call {number} is sent to another replica, though it was decided")
        return ready

    def _take(self, result: Result, now: Now) -> Ready:
        for number, reply in result.replies:
            if number in self._decided:
                self.world.violation(f"L6 the reply to call {number} is decided twice, now as {reply}")
            self._decided.add(number)
        self.world.check_join_phases(self.shard)
        if result.records:
            if not self._ends_join_phase:
                self._check_pending(result)
            if self.world.check_invariants:
                self._check_groups(result)
        return super()._take(result, now)

    def _check_pending(self, decided: Result) -> None:
        """Protocol §3.4: only the rebalance timeout ends a join phase over the head of a pending id. An election whose
        leader has gone has none: it takes the other candidates along.
        """
        left = {(each.namespace, each.group_id) for each in decided.records if each.record.kind in MEMBER_ENDS}
        for entry in decided.records:
            if entry.record.kind == "generation_completed":
                group = self.shard.groups[(entry.namespace, entry.group_id)]
                if group.pending and not (group.protocol_type == LEADER_TYPE and group.key in left):
                    text = f"S3 {entry.group_id}: generation completed, {list(group.pending)} are pending"
                    self.world.violation(text)

    def _check_groups(self, decided: Result) -> None:
        for key in {(entry.namespace, entry.group_id): None for entry in decided.records}:
            group = self.shard.groups.get(key)
            for rule in check_group(group) if group is not None else ():
                self.world.violation(f"invariant {key[1]}: {rule}")


class WatchedCoordinator(LocalCoordinator):
    """The production coordinator; each answer that it gives as an owner is shown to the world as it leaves."""

    process: SimulatedReplica

    async def call(self, request: Request) -> Answer:
        answer = await super().call(request)
        self._show(request, answer)
        return answer

    def try_heartbeat(self, request: Heartbeat | HeartbeatMany) -> Answer | None:
        answer = super().try_heartbeat(request)
        if answer is not None:
            self._show(request, answer)
        return answer

    def submit(self, request: Submitted, done: Callable[[Answer], None]) -> Cancel | None:
        def show(answer: Answer) -> None:
            self._show(request, answer)
            done(answer)

        return super().submit(request, show)

    async def record_heartbeat(self, request: Heartbeat | HeartbeatMany) -> Answer | None:
        answer = await super().record_heartbeat(request)
        self.process.note_recorded(answer)
        return answer

    def _with_new_member_id(self, request: JoinGroup) -> JoinGroup:
        """Draw the id that a newcomer may get from the world's random numbers."""
        if request.member_id or request.new_member_id:
            return request
        return replace(request, new_member_id=self.process.world.new_member_id(request.client_id))

    def _show(self, request: Request, answer: Answer) -> None:
        # A waiting question is answered with the last known state: that may be of a former owner.
        if answer.epoch and not (isinstance(request, GetLeader | GetTopic | ListTopics) and request.wait_ms):
            self.process.note_answer(request, answer)


class Witness(Telemetry):
    """What the runtime reports of itself, for the checks."""

    def __init__(self, world: World, replica: SimulatedReplica) -> None:
        self._world = world
        self._replica = replica
        self._loaded: dict[int, OwnedShard] = {}

    def on_commit(self, lines: Mapping[int, Sequence[JournalEvent]], _seconds: float) -> None:
        for shard_id in lines:
            owned = self._replica.owned.get(shard_id)
            if owned is not None and owned.seq == owned.durable_seq and not self._world.is_over:
                self._world.compare_with_store(owned)

    def on_shard_loaded(self, shard_id: int, epoch: int, _groups: int, _seconds: float) -> None:
        owned = self._loaded[shard_id] = self._replica.owned[shard_id]
        owned.__class__ = WatchedShard
        assert isinstance(owned, WatchedShard)
        owned.watch(self._world)
        self._check_loaded(owned)
        if not owned.claim.generation_floor:
            # Else it has raised generations already, which the journal says after this shard's first line.
            self._world.store.note_loaded(owned.shard, epoch)
        self._world.note_owner(self._replica, shard_id)

    def _check_loaded(self, owned: OwnedShard) -> None:
        """S11: nothing is appended between a claim and the load that follows it, unless by the next owner."""
        world, claim, loaded_seq = self._world, owned.claim, owned.durable_seq
        is_newest = world.store.tables.epoch_of(claim.shard_id) == claim.epoch
        if loaded_seq != claim.last_seq and is_newest and not world.is_excused(claim.shard_id):
            world.violation(f"S11 shard {claim.shard_id}: journal grew from {claim.last_seq} to {loaded_seq} unowned")

    def on_shard_dropped(self, shard_id: int, _epoch: int, reason: str) -> None:
        if reason.startswith("a broken invariant"):
            self._world.violation(f"crash: shard {shard_id} of {self._replica.owner_id}: {reason}")
        if reason == "handed over" and not self._loaded[shard_id].is_durable and self._replica.store.is_well():
            self._world.violation(
                f"L10 shard {shard_id}: {self._replica.owner_id} lets go of what it could have written"
            )
        if self._world.parts.steals and reason in ("the lease is over", "the lease had run out before it was renewed"):
            self._world.violation(f"L13 shard {shard_id}: an embedded store's only process has lost it: {reason}")
        self._world.sometimes(f"shard dropped: {reason.partition(':')[0]}")

    def on_store_copied(self, shards: int) -> None:
        self._world.violation(f"L9 {self._replica.owner_id} takes its only store for a copy, for {shards} shards")

    def on_store_went_back(self, setbacks: Sequence[Setback]) -> None:
        self._world.note_setbacks(self._replica, setbacks)

    def on_late_timer(self, lateness_ms: int) -> None:
        stall = Stall(self._replica.owner_id, self._world.scheduler.now_ms, lateness_ms)
        self._world.history.stalls.append(stall)
        self._world.sometimes("timers were late and held back")
