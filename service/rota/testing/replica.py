"""A simulated replica: production's `rota.replica`, with the simulated store and network around it.

All decisions are made there. What its steps ask for is carried out here: batches go to the store, timers are set,
replies are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from msgspec.structs import replace

from rota.group.rows import SideCommit
from rota.group.state import Result, Timer, TimerKind
from rota.protocol.causes import MEMBER_ENDS
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import GroupRequest, JoinGroup, Request
from rota.replica.going_back import StoreMemory
from rota.replica.owned_shard import (
    APPEND_LATEST_MS,
    NOT_AVAILABLE,
    NOT_OWNED,
    TAKE_IN_INTERVAL_MS,
    Append,
    GroupCommit,
    Now,
    OwnedShard,
    Prerequisite,
    ReadSideCommits,
    Ready,
    claim_to_confirm,
    prerequisites,
    refused_without,
)
from rota.replica.ports import Answer
from rota.testing.coverage import outcome_of_request, outcome_of_step, state_of
from rota.testing.invariants import check_group
from rota.testing.keeper import ShardKeeper
from rota.testing.liveness import SimulatedSessions
from rota.testing.peers import Incoming, PeersOfReplica
from rota.testing.replicas import ReplicaProcess
from rota.testing.served import SimulatedAssigner
from rota.types.leader import PROTOCOL_TYPE as LEADER_TYPE

if TYPE_CHECKING:
    from rota.testing.network import Delivery
    from rota.testing.world import World


class Replica(ReplicaProcess):
    """A replica with a simulated shell. It keeps its name in the store over a restart."""

    def __init__(self, world: World, replica_id: str) -> None:
        super().__init__(replica_id, replica_id)
        self.world = world
        self.clock_offset_ms = world.clock_offset_of(replica_id)
        """How far its wall clock is off: nothing may depend on it."""
        self.calls: dict[int, Incoming] = {}
        """Requests that have no answer yet, by number: the way back."""
        self.group: GroupCommit[Callable[[bool], None]] = GroupCommit()
        self._sent: Append | None = None
        self._appending_late: set[OwnedShard] = set()
        self._is_reading = False
        """Side commits are being read."""
        self.keeper = ShardKeeper(world, self)
        self.peers = PeersOfReplica(world, self)
        self.sessions = SimulatedSessions(world, self, world.liveness) if world.liveness else None
        self.assigner = SimulatedAssigner(self)
        self._decided: set[int] = set()
        """Calls of which the reply is decided."""
        if world.parts.side_door:
            world.scheduler.after(TAKE_IN_INTERVAL_MS, self, self._keep_taking_in)

    def now(self) -> Now:
        now_ms = self.world.scheduler.now_ms
        return Now(now_ms + self.clock_offset_ms, now_ms)

    # --- requests --------------------------------------------------------------------------------

    def receive(self, delivery: Delivery) -> None:
        if self.world.forwards or self.sessions is not None:
            self.peers.call(delivery, delivery.call.request)
        else:
            self.serve(delivery, delivery.call.request)

    def serve(self, incoming: Incoming, request: Request) -> None:
        """Answer a request from this replica's own shards."""
        shard_id = incoming.call.shard_id
        refusal = self.peers.forwarding.refusal(request, shard_id)
        if refusal is not None:
            incoming.answer(refusal)
            return
        needed = prerequisites(request, has_side_door=self.world.parts.side_door, is_shared=True)
        self._serve_after(needed, self.owned[shard_id], incoming, request)

    def _serve_after(
        self, needed: Sequence[Prerequisite], owned: OwnedShard, incoming: Incoming, request: Request
    ) -> None:
        if not needed:
            self._submit(owned, incoming, request)
            return

        def answered(is_met: bool) -> None:
            if is_met:
                self._serve_after(needed[1:], owned, incoming, request)
            else:
                incoming.answer(refused_without(needed[0], request))

        match needed[0]:
            case Prerequisite.SIDE_COMMITS:
                self.take_in(owned, answered)
            case Prerequisite.OWNER:
                self._confirm(owned, answered)

    def _confirm(self, owned: OwnedShard, answered: Callable[[bool], None]) -> None:
        """Ask the store whether the shard is still owned here."""

        def read(held: list[int] | None) -> None:
            is_owner = held == [owned.shard_id]
            if held is not None and not is_owner:
                self.drop(owned, NOT_OWNED)
            answered(is_owner)

        self.world.store.submit(
            self,
            partial(self.world.store.tables.confirm, [claim_to_confirm(owned)], self.replica_id),
            self.keeper.leases.lease_ms // 2,
            read,
            cut_off=self.cut_off_from_store(),
        )

    def _submit(self, owned: OwnedShard, incoming: Incoming, request: Request) -> None:
        if isinstance(request, JoinGroup) and not request.member_id:
            request = replace(request, new_member_id=self.world.new_member_id(request.client_id))
        number = self.world.next_call()
        self.calls[number] = incoming
        before = state_of(owned.shard, request.namespace, request.key)
        ready = owned.submit(number, request, self.now())
        if ready.decided is not None and isinstance(request, GroupRequest):
            reached = outcome_of_request(number, ready.decided)
            self.world.history.note_reached(before, type(request).__name__, *reached)
        if ready.parks_ms is not None:
            self.world.scheduler.after(ready.parks_ms, self, self._wait_is_over, owned, number)
        self.carry_out(owned, ready)

    def hang_up(self, delivery: Delivery) -> None:
        if not self.peers.hang_up(delivery):
            self.cancel(delivery)

    def cancel(self, incoming: Incoming) -> None:
        """The answer of this replica's shards is wanted no more."""
        number = next((number for number, waiting in self.calls.items() if waiting is incoming), None)
        if number is None:
            return
        del self.calls[number]
        self.world.hung_up.add(number)
        owned = self.owned.get(incoming.call.shard_id)
        if owned is not None:
            self._step("hang_up", owned, incoming.call.request, lambda: owned.hang_up(number, self.now()))

    def _wait_is_over(self, owned: OwnedShard, number: int) -> None:
        waiting = self.calls.get(number)
        if waiting is not None:
            self._step("wait_is_over", owned, waiting.call.request, lambda: owned.unpark(number, self.now()))
        if owned.is_waiting(number) and number not in self._decided:
            self.world.violation(f"L6 {self.calls[number].call.request} is neither answered nor parked")

    def fire(self, owned: OwnedShard, timer: Timer) -> None:
        """A timer is due."""
        is_join = timer.kind is TimerKind.JOIN
        event = f"timer:{timer.kind}"

        def step() -> Ready:
            ready = owned.on_timer(timer, self.now())
            if ready.asks is None or (self.sessions is not None and timer.kind is TimerKind.SESSION):
                return ready
            return owned.others_answered(timer, None, self.now())  # There is nothing that was received and not read.

        self._step(event, owned, timer, step, by_join_timer=is_join)

    def _step(
        self,
        event: str,
        owned: OwnedShard,
        of: Request | Timer,
        step: Callable[[], Ready],
        *,
        by_join_timer: bool = False,
    ) -> None:
        """Take a step that is no request, and note its outcome."""
        group_id = of.group_id if isinstance(of, Timer | GroupRequest) else ""
        before, ready = state_of(owned.shard, of.namespace, group_id), step()
        if ready.decided is not None:
            self.world.history.note_reached(before, event, outcome_of_step(ready.decided))
        self.carry_out(owned, ready, by_join_timer=by_join_timer)

    def sweep(self) -> None:
        for owned in list(self.owned.values()):
            if self.world.parts.side_door:
                self.take_in(owned, partial(self._sweep_if_known, owned, self.now().wall_ms))
            else:
                self.carry_out(owned, owned.sweep(self.now()))

    def _sweep_if_known(self, owned: OwnedShard, began_ms: int, known: bool) -> None:
        if known:
            self.carry_out(owned, owned.sweep(self.now(), began_ms))

    # --- what a shard decides ----------------------------------------------------------------------

    def carry_out(self, owned: OwnedShard, ready: Ready, *, by_join_timer: bool = False) -> None:
        """Do what a step asks for."""
        if ready.decided is not None:
            self._check(owned, ready.decided, by_join_timer=by_join_timer)
        if ready.appends:
            self.group.want(owned)
            self.commit()
        if ready.unsettled and owned.has_entries and owned not in self._appending_late:
            self._appending_late.add(owned)
            self.world.scheduler.after(APPEND_LATEST_MS, self, self._append_late, owned)
        for timer in ready.timers:
            self.world.scheduler.after(max(timer.at_ms - self.now().wall_ms, 0), self, self.fire, owned, timer)
        for number, answer in ready.replies:
            self._reply(owned, number, answer)
        if self.sessions is not None:
            if ready.asks is not None:
                self.sessions.ask(owned, ready.asks)
            if ready.gone:
                self.sessions.forget(owned.shard_id, ready.gone)
        if ready.assigns is not None:
            self.assigner.want(owned, ready.assigns)

    def _reply(self, owned: OwnedShard, number: int, answer: Answer) -> None:
        incoming = self.calls.pop(number, None)
        if incoming is not None:
            if answer.reply.error is ErrorCode.NOT_COORDINATOR and number in self._decided:
                self.world.violation(f"D1 {incoming.call.request} is sent to another replica, though it was decided")
            if answer.epoch:
                self._check_lease(owned)
                self.world.note_release(self.owner_id, owned.shard_id, answer.epoch, answer.revision)
            incoming.answer(answer)
        elif number not in self.world.hung_up:
            self.world.violation(f"L6 call {number} was answered twice, now with {answer.reply}")

    # --- commits ---------------------------------------------------------------------------------

    def _append_late(self, owned: OwnedShard) -> None:
        """Append entries that nothing has waited for."""
        self._appending_late.discard(owned)
        if not owned.is_dropped:
            self.group.want(owned)
            self.commit()

    def commit(self) -> None:
        """Send the ready batch, unless one is in flight."""
        match None if self._is_reading else self.group.next():
            case Append() as append:
                self._append(append)
            case ReadSideCommits() as to_read:
                self._read_side_commits(to_read)

    def _append(self, append: Append) -> None:
        self._sent = append
        lease_left_ms = min(owned.lease_until_ms for owned in append.batches) - self.world.scheduler.now_ms
        batches = list(append.batches.values())
        store = self.world.store
        store.submit(
            self,
            lambda: store.append(self.replica_id, self.clock_offset_ms, batches, lambda: self._sent is not append),
            max(lease_left_ms, 1),
            lambda refused: self._appended(append, refused),
            cut_off=self.cut_off_from_store(),
        )

    def _appended(self, append: Append, refused: list[int] | None) -> None:
        """The transaction's outcome is here, or given up on."""
        self._sent = None
        if refused is None:
            self._note_unknown(append)
            landed = self.group.outcome_unknown("no answer")
        else:
            landed = self.group.landed(refused, self.now())
        for owned, reason in landed.lost.items():
            self.drop(owned, reason)
        for owned, ready in landed.committed.items():
            if len(ready.replies) > 1:
                self.world.sometimes("several results in one commit")
            self.carry_out(owned, ready)
            if owned.is_appended and not owned.is_dropped:
                self.world.compare_with_store(owned)
        self.commit()
        if self.group.is_idle:
            for owned in self.owned.values():
                if not owned.is_durable:
                    self.world.violation(f"D3 shard {owned.shard_id} waits for a write that is not under way")

    def _note_unknown(self, append: Append) -> None:
        """D3: it is not known what the store holds now, so nothing of these epochs may be answered any more."""
        for owned in append.batches:
            if not owned.is_dropped:
                noted = (owned.shard_id, owned.claim.epoch, self.world.scheduler.now_ms)
                self.world.history.unknown_appends.append(noted)
                self.world.sometimes("unknown outcome of an append")

    # --- commits of users' own transactions --------------------------------------------------------

    def take_in(self, owned: OwnedShard, done: Callable[[bool], None]) -> None:
        """`done` is called once the shard has the commits beside it; with False where the store does not answer."""
        self.group.ask(owned, done)
        self.commit()

    def _keep_taking_in(self) -> None:
        for owned in list(self.owned.values()):
            self.take_in(owned, lambda _known: None)
        self.world.scheduler.after(TAKE_IN_INTERVAL_MS, self, self._keep_taking_in)

    def _read_side_commits(self, to_read: ReadSideCommits) -> None:
        self._is_reading = True
        by_id = {owned.shard_id: owned for owned in to_read.shards}
        tables = self.world.store.tables
        self.world.store.submit(
            self,
            lambda: tables.side_commits(sorted(by_id)),
            self.keeper.leases.lease_ms // 2,
            partial(self._have_read, by_id),
            cut_off=self.cut_off_from_store(),
        )

    def _have_read(self, by_id: dict[int, OwnedShard], commits: list[SideCommit] | None) -> None:
        for shard_id, found in groupby(commits or (), key=lambda commit: commit.shard_id):
            self.world.sometimes("a shard takes in offsets that were committed beside it")
            self._take_in(by_id[shard_id], list(found))
        waiting, self._is_reading = self.group.side_commits_read(), False
        for done in waiting:
            done(commits is not None)
        self.commit()

    def _take_in(self, owned: OwnedShard, commits: list[SideCommit]) -> None:
        before = {state_of(owned.shard, commit.namespace, commit.group_id) for commit in commits}
        ready = owned.take_in(commits, self.now())
        if ready.decided is not None and len(before) == 1:
            self.world.history.note_reached(before.pop(), "take_in", outcome_of_step(ready.decided))
        self.carry_out(owned, ready)

    # --- ownership -------------------------------------------------------------------------------

    @property
    def owned(self) -> dict[int, OwnedShard]:
        return self.keeper.leases.owned

    @property
    def memory(self) -> StoreMemory:
        return self.keeper.known.memory

    def drop(self, owned: OwnedShard, reason: str, code: ErrorCode = NOT_AVAILABLE, *, undecided: bool = False) -> None:
        """Stop answering for a shard; each waiting call is answered: ask again."""
        if owned.is_dropped:
            return
        self.keeper.leases.remove(owned)
        self.world.sometimes(f"shard dropped: {reason}")
        self.carry_out(owned, owned.drop(reason, code, undecided=undecided))
        self.keeper.nudge()

    def end(self, has_failed: bool = False) -> None:  # noqa: ARG002 — its leases then run out by themselves
        """It has stopped in order; it is started again after a while."""
        self.peers.check_drained()
        self.crash()
        self.world.nemesis.start_again(self)

    def cut_off_from_store(self) -> bool:
        return self.world.scheduler.now_ms < self.cut_off_from_store_until_ms

    def hand_over(self) -> None:
        if not self.keeper.leases.is_leaving:
            self.keeper.release()

    def crash(self) -> None:
        self.dead = True
        for owned in self.owned.values():
            if self._sent is not None and owned in self._sent.batches:
                self.world.sometimes("owner died with an append under way")
            owned.drop("crash")
        for incoming in self.calls.values():
            incoming.break_off()
        self.calls.clear()
        self.peers.crash()

    # --- checks and counts -----------------------------------------------------------------------

    def _check(self, owned: OwnedShard, decided: Result, *, by_join_timer: bool) -> None:
        for number, reply in decided.replies:
            if number in self._decided:
                self.world.violation(f"L6 the reply to call {number} is decided twice, now as {reply}")
            self._decided.add(number)
        self.world.check_join_phases(owned.shard)
        if decided.records:
            if not by_join_timer:
                self._check_pending(owned, decided)
            if self.world.check_invariants:
                self._check_groups(owned, decided)

    def _check_lease(self, owned: OwnedShard) -> None:
        """S15: by its own reckoning, a lease is over before the store says so, unless the store's clock was set."""
        tables, now_ms = self.world.store.tables, self.world.scheduler.now_ms
        is_ours = tables.owner_of(owned.shard_id) == self.owner_id
        store_ms = tables.lease_left_ms(owned.shard_id)
        store_ms += self.world.history.stepped_ahead_ms(now_ms - self.keeper.leases.lease_ms)
        if is_ours and owned.lease_until_ms > now_ms + store_ms and not self.world.is_excused(owned.shard_id):
            self.world.violation(f"S15 shard {owned.shard_id}: the lease lasts longer here than in the store")

    def _check_pending(self, owned: OwnedShard, result: Result) -> None:
        """Protocol §3.4: only the rebalance timeout ends a join phase over the head of a pending id. An election whose
        leader has gone has none: it takes the other candidates along.
        """
        left = {(each.namespace, each.group_id) for each in result.records if each.record.kind in MEMBER_ENDS}
        for entry in result.records:
            if entry.record.kind == "generation_completed":
                group = owned.shard.groups[(entry.namespace, entry.group_id)]
                if group.pending and not (group.protocol_type == LEADER_TYPE and group.key in left):
                    self.world.violation(
                        f"S3 {entry.group_id}: generation completed, {list(group.pending)} are pending"
                    )

    def _check_groups(self, owned: OwnedShard, result: Result) -> None:
        for key in {(entry.namespace, entry.group_id): None for entry in result.records}:
            group = owned.shard.groups.get(key)
            for rule in check_group(group) if group is not None else ():
                self.world.violation(f"invariant {key[1]}: {rule}")
