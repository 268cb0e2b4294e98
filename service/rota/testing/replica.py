"""A simulated replica: the real `Shard`, behind a small model of the runtime's rules for commits and leases.

The rules that matter are the runtime's: results are appended in order, several in one transaction; replies and timers
are let go only once everything they reflect is durable; a shard whose write was refused, or whose outcome is not
known, is dropped and taken again with a new epoch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from rota.group.invariants import check_group
from rota.group.result import Result, Timer, TimerKind
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import JoinGroup, Reply, parks_for_ms, refuse
from rota.testing.keeper import ShardKeeper
from rota.testing.owned import Outcome, OwnedShard
from rota.testing.replicas import ReplicaProcess
from rota.testing.served import SimulatedAssigner
from rota.testing.store import Batch

if TYPE_CHECKING:
    from rota.testing.network import Delivery
    from rota.testing.world import World


class Replica(ReplicaProcess):
    """A replica whose runtime is a model. It keeps its name in the store over a restart."""

    def __init__(self, world: World, replica_id: str) -> None:
        super().__init__(replica_id, replica_id)
        self.world = world
        self.clock_offset_ms = world.clock_offset_of(replica_id)
        """How far its wall clock is off: nothing may depend on it."""
        self._owned: dict[int, OwnedShard] = {}
        self.calls: dict[int, tuple[int, Delivery]] = {}
        """Requests that have no answer yet: by number, the shard and the way back."""
        self.committing = False
        self.owner_hints: dict[int, str] = {}
        self.keeper = ShardKeeper(world, self)
        self.assigner = SimulatedAssigner(self)

    @property
    def owned(self) -> dict[int, OwnedShard]:
        return self._owned

    def now_ms(self) -> int:
        """Its wall clock, which the core is given."""
        return self.world.scheduler.now_ms + self.clock_offset_ms

    # --- requests --------------------------------------------------------------------------------

    def receive(self, delivery: Delivery) -> None:
        shard_id = delivery.call.shard_id
        owned = self.serving(shard_id)
        request = delivery.call.request
        if owned is None:
            loading = shard_id in self.keeper.loading
            error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if loading else ErrorCode.NOT_COORDINATOR
            delivery.answer(refuse(request, error, ""), hint=self.owner_hints.get(shard_id))
            return
        if isinstance(request, JoinGroup) and not request.member_id:
            request = replace(request, new_member_id=self.world.new_member_id(request.client_id))
        number = self.world.next_call()
        self.calls[number] = (shard_id, delivery)
        self.take(owned, owned.shard.handle(request, number, self.now_ms()))
        self.world.scheduler.after(parks_for_ms(request), self, self._wait_is_over, owned, number)

    def hang_up(self, delivery: Delivery) -> None:
        number = next((n for n, (_, waiting) in self.calls.items() if waiting is delivery), None)
        if number is None:
            return
        shard_id, _ = self.calls.pop(number)
        self.world.hung_up.add(number)
        owned = self.owned.get(shard_id)
        if owned is not None:
            self.take(owned, owned.shard.unpark(delivery.call.request, number, self.now_ms(), answer=False))

    def _wait_is_over(self, owned: OwnedShard, number: int) -> None:
        if owned.dropped or number not in self.calls:
            return
        request = self.calls[number][1].call.request
        self.take(owned, owned.shard.unpark(request, number, self.now_ms(), answer=True))
        undelivered = [*owned.outcomes, *(owned.sent or ())]
        if number in self.calls and not any(number in dict(outcome.replies) for outcome in undelivered):
            self.world.violation(f"L6 {request} is neither answered nor parked")

    def ring(self, owned: OwnedShard, timer: Timer) -> None:
        """A timer is due, unless the shard was dropped since it was set."""
        if owned.dropped or self.serving(owned.shard.shard_id) is not owned:
            return
        if timer.kind is TimerKind.ASSIGN:
            self.assigner.want(owned, timer)
        else:
            self.take(owned, owned.shard.on_timer(timer, self.now_ms()), by_join_timer=timer.kind is TimerKind.JOIN)

    def sweep(self) -> None:
        for owned in list(self.owned.values()):
            if self.serving(owned.shard.shard_id) is owned:
                self.take(owned, owned.shard.sweep(self.now_ms())[0])

    # --- commits ---------------------------------------------------------------------------------

    def take(self, owned: OwnedShard, result: Result, *, by_join_timer: bool = False) -> None:
        """Queue a result behind everything decided before it."""
        now_ms = self.world.scheduler.now_ms
        if result.records:
            owned.unsent.extend(result.records)
            owned.decided_ms.extend([now_ms] * len(result.records))
            owned.revision += len(result.records)
            if not by_join_timer:
                self._check_pending(owned, result)
            if self.world.check_invariants:
                self._check_groups(owned, result)
        outcome = Outcome(owned.revision, result.replies, result.timers)
        if owned.unsent or owned.sent is not None:
            owned.outcomes.append(outcome)
            self.commit()
        else:
            self.let_go(owned, outcome)

    def commit(self) -> None:
        """Send what is ready, of all shards, in one transaction; one at a time."""
        if self.committing:
            return
        cuts = [(owned, owned.cut()) for owned in self.owned.values() if owned.unsent]
        if not cuts:
            return
        self.committing = True
        if any(len(owned.sent or ()) > 1 for owned, _ in cuts):
            self.world.sometimes("several results in one commit")
        lease_left_ms = min(owned.lease_until_ms for owned, _ in cuts) - self.world.scheduler.now_ms
        batches = [batch for _, batch in cuts]
        answered = False

        def done(refused: list[int] | None) -> None:
            nonlocal answered
            answered = True
            self._committed(cuts, refused)

        store = self.world.store
        store.submit(
            self,
            lambda: store.append(self.replica_id, batches, lambda: answered),
            max(lease_left_ms, 1),
            done,
            cut_off=self.cut_off_from_store(),
        )

    def _committed(self, cuts: list[tuple[OwnedShard, Batch]], refused: list[int] | None) -> None:
        """The transaction's outcome is here, or given up on."""
        self.committing = False
        for owned, batch in cuts:
            if owned.dropped:
                continue
            if refused is None:
                self.unknown_outcome(owned)
            elif batch.shard_id in refused:
                self.drop(owned, "refused")
            else:
                self._landed(owned)
        self.commit()

    def _landed(self, owned: OwnedShard) -> None:
        outcomes, owned.sent = owned.sent or [], None
        if not owned.unsent:
            outcomes += owned.outcomes
            owned.outcomes = []
        for outcome in outcomes:
            self.let_go(owned, outcome)
        if not owned.unsent and not owned.dropped:
            self.world.compare_with_store(owned)

    def unknown_outcome(self, owned: OwnedShard) -> None:
        """D3: nobody knows what the store holds now, so nothing of this epoch may be answered any more."""
        now_ms = self.world.scheduler.now_ms
        self.world.history.unknown_appends.append((owned.shard.shard_id, owned.epoch, now_ms))
        self.world.sometimes("unknown outcome of an append")
        self.drop(owned, "unknown outcome")

    def let_go(self, owned: OwnedShard, outcome: Outcome) -> None:
        """Set the timers, release the replies: their facts are durable."""
        world = self.world
        if self.serving(owned.shard.shard_id) is not owned:
            return  # Dropped: whoever waited has been answered.
        for timer in outcome.timers:
            due_ms = timer.at_ms - self.now_ms()
            world.scheduler.after(max(due_ms, 0), self, self.ring, owned, timer)
        for number, reply in outcome.replies:
            self._reply(owned, number, reply, outcome.revision)

    def _reply(self, owned: OwnedShard, number: int, reply: Reply, revision: int) -> None:
        waiting = self.calls.pop(number, None)
        if waiting is not None:
            self.world.note_release(self.owner_id, owned.shard.shard_id, owned.epoch, revision)
            waiting[1].answer(reply, revision=revision, epoch=owned.epoch)
        elif number not in self.world.hung_up:
            self.world.violation(f"L6 call {number} was answered twice, now with {reply}")

    # --- ownership -------------------------------------------------------------------------------

    def drop(self, owned: OwnedShard, reason: str) -> None:
        """Stop answering for a shard; whoever waits is told to ask again."""
        if owned.dropped:
            return
        owned.dropped = True
        shard_id = owned.shard.shard_id
        if self.owned.get(shard_id) is owned:
            del self.owned[shard_id]
        self.world.sometimes(f"shard dropped: {reason}")
        for number in [n for n, (waiting_shard_id, _) in self.calls.items() if waiting_shard_id == shard_id]:
            self._answer_unavailable(number)

    def _answer_unavailable(self, number: int) -> None:
        waiting = self.calls.pop(number, None)
        if waiting is not None:
            delivery = waiting[1]
            delivery.answer(refuse(delivery.call.request, ErrorCode.COORDINATOR_NOT_AVAILABLE, "the shard is moving"))

    def serving(self, shard_id: int) -> OwnedShard | None:
        """The shard, if its lease lasts by our own clock; an owner stops before the store lets another one in."""
        owned = self.owned.get(shard_id)
        if owned is not None and owned.lease_until_ms <= self.world.scheduler.now_ms:
            self.drop(owned, "lease over")
            return None
        return owned

    def cut_off_from_store(self) -> bool:
        return self.world.scheduler.now_ms < self.cut_off_from_store_until_ms

    def hand_over(self) -> None:
        self.keeper.release()

    def crash(self) -> None:
        self.dead = True
        for owned in self.owned.values():
            if owned.sent is not None:
                self.world.sometimes("owner died with an append under way")
            owned.dropped = True
        for _, delivery in self.calls.values():
            delivery.break_off()
        self.calls.clear()

    # --- checks and counts -----------------------------------------------------------------------

    def _check_pending(self, owned: OwnedShard, result: Result) -> None:
        """Protocol §3.4: only the rebalance timeout ends a join phase over the head of a pending id."""
        for entry in result.records:
            if entry.record.kind == "generation_completed":
                group = owned.shard.groups[(entry.namespace, entry.group_id)]
                if group.pending:
                    self.world.violation(
                        f"S3 {entry.group_id}: generation completed, {list(group.pending)} are pending"
                    )

    def _check_groups(self, owned: OwnedShard, result: Result) -> None:
        for key in {(entry.namespace, entry.group_id): None for entry in result.records}:
            group = owned.shard.groups.get(key)
            for rule in check_group(group) if group is not None else ():
                self.world.violation(f"invariant {key[1]}: {rule}")
